"""What a job's processes can see and do on the machine, how jobd finds and kills them, and which deleted files
they have open."""
