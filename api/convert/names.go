package convert

import (
	"fmt"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// maxName is above the length of every name that a request can carry rightly,
// and small enough to be repeated in an error.
const maxName = 512

// Names checks names that a request must carry, given as pairs of field and
// value, and notes those that are missing or longer than any name.
func Names(fieldsAndValues ...string) errdefs.Violations {
	var vs errdefs.Violations
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

// UIDs checks a list of pods' uids. Blanks and slashes show that it is a list of
// something else, a table of pods or their names, and who is not in it ends. Pods
// that are nothing to berth may be in it, whatever their uids are.
func UIDs(field string, uids []string) errdefs.Violations {
	var vs errdefs.Violations
	for i, uid := range uids {
		at := fmt.Sprintf("%s[%d]", field, i)
		if vs = append(vs, Names(at, uid)...); strings.ContainsAny(uid, " \t\r\n/") {
			vs.Addf(at, "%.80q: expected the uid of a pod", uid)
		}
		if len(vs) >= shownUIDs {
			break
		}
	}
	return vs
}
