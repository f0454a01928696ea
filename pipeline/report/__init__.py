"""What is made of a run when it is over: the proof, the group's history, the picture and its page."""
