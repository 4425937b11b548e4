package commands

// DialOnce is dialOnce, which no server can tell from a client that is patient.
var DialOnce = dialOnce

// RateValue and PercentValue are flags' values, for tests of what they take.
type (
	RateValue    = rateValue
	PercentValue = percentValue
)
