"""What a job's processes can see on the machine, and how jobd finds and kills them."""
