package convert

import (
	"fmt"

	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/workload"
)

// maxName is above the length of every name that a request can carry rightly,
// and small enough to be repeated in an error.
const maxName = 512

// Names checks names that a request must carry, given as pairs of field and
// value, and notes those that are missing or longer than any name.
func Names(fieldsAndValues ...string) fault.Violations {
	var vs fault.Violations
	for i := 0; i+1 < len(fieldsAndValues); i += 2 {
		switch field, n := fieldsAndValues[i], len(fieldsAndValues[i+1]); {
		case n == 0:
			vs.Addf(field, "is required")
		case n > maxName:
			vs.Addf(field, "%d characters: expected at most %d", n, maxName)
		}
	}
	return vs
}

// shownUIDs is how many bad uids an error names: in a list of something else all
// of them are.
const shownUIDs = 8

// UIDs checks a list of pods' uids. One that no pod can have shows that the list is
// of something else, and who is not in it ends.
func UIDs(field string, uids []string) fault.Violations {
	var vs fault.Violations
	for i, uid := range uids {
		if workload.CheckUID(fmt.Sprintf("%s[%d]", field, i), uid, &vs); len(vs) == shownUIDs {
			break
		}
	}
	return vs
}
