"""Templates: bootable images made from recipes, kept in the home by digest, pointed to by name."""

from torpor.templates.manifest import Template
from torpor.templates.settle import Booter
from torpor.templates.store import TemplateStore

__all__ = ["Booter", "Template", "TemplateStore"]
