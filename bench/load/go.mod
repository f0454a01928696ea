module coterie/bench/load

go 1.21
