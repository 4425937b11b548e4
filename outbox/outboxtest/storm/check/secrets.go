package check

import "strings"

// judgeSecrets: no canary was found, and somebody has looked.
func judgeSecrets(s *story, v *verdict) {
	for _, x := range s.Searches {
		if x.Bytes > 0 {
			v.saw(1)
		}
		if len(x.Found) > 0 {
			v.wrong("%s holds %s", x.Place, strings.Join(x.Found, ", "))
		}
	}
}
