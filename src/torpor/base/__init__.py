"""The ground floor: durable files, processes, tasks, ids, time and units. Knows nothing of sandboxes."""
