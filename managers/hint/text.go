package hint

import "strconv"

// TooFew returns a sentence for Impossible: need things are requested, and only free are
// available. one and many are the noun.
func TooFew(need, free int, one, many string) string {
	if need == 1 {
		return "1 " + one + " is needed, and none is free"
	}
	text := strconv.Itoa(need) + " " + many + " are needed, and "
	switch {
	case free <= 0:
		return text + "none is free"
	case free == 1:
		return text + "1 is free"
	}
	return text + strconv.Itoa(free) + " are free"
}
