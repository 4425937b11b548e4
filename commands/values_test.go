package commands_test

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/commands"
)

func TestValuesOfFlags(t *testing.T) {
	t.Parallel()
	rate := func() pflag.Value { return new(commands.RateValue) }
	percent := func() pflag.Value { return new(commands.PercentValue) }
	tests := []struct {
		name string
		kind func() pflag.Value
		text string
		want string // as it prints itself; "" = refused
	}{
		{"per second", rate, "50/s", "50/s"},
		{"per minute", rate, "600/m", "10/s"},
		{"per hour", rate, "1800/h", "0.5/s"},
		{"a fraction", rate, "0.25/s", "0.25/s"},
		{"no unit", rate, "50", ""},
		{"another unit", rate, "50/d", ""},
		{"nothing", rate, "0/s", ""},
		{"negative", rate, "-1/s", ""},
		{"no number", rate, "NaN/s", ""},
		{"too much", rate, "1e10/s", ""},
		{"percent", percent, "95%", "95%"},
		{"percent with a blank", percent, "99.5 %", "99.5%"},
		{"a share", percent, "0.95", "95%"},
		{"all", percent, "1", "100%"},
		{"none", percent, "0%", "0%"},
		{"a number that may be either", percent, "95", ""},
		{"above all", percent, "101%", ""},
		{"no share", percent, "NaN", ""},
		{"no share in percent", percent, "most", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := tt.kind()
			err := v.Set(tt.text)
			if got := v.String(); err == nil && got != tt.want || (err != nil) != (tt.want == "") {
				t.Errorf("%q = %s, %v; want %q", tt.text, got, err, tt.want)
			}
		})
	}
}
