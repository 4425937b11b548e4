package commands

// DialOnce is dialOnce, which no server can tell from a client that is patient.
var DialOnce = dialOnce
