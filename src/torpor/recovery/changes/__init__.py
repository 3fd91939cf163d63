"""Changes: snapshot, change, verify, then keep or roll back; see `desk` for what may be asked, `workflow` for how it goes."""
