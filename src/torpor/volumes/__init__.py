"""Volumes: durable storage outside any sandbox. Rows and files of them; machines are `torpor.sandboxes`' business."""
