"""Watches: checks that are run on a machine again and again, outside any change."""
