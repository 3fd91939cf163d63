from tests.unit.recovery.stage import act

__all__ = ["act"]
