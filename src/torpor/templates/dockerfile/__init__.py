"""Dockerfiles, a documented subset: read (`parse`), understood (`meaning`), packed (`context`) and carried out (`run`).

The steps run in the machine of the template's first boot, never on the host.
"""
