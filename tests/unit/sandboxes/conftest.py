from tests.unit.sandboxes.world import play

__all__ = ["play"]
