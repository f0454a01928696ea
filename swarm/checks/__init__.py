"""What must hold in a run of the swarm: of answers, of the log, of groups and members, of time."""
