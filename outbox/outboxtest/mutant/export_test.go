package mutant

// Judge is judge, which no run of tests can show all that it has to tell apart.
var Judge = judge
