package convert

import (
	"fmt"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// Domain is the domain of the reasons in error details and conditions.
const Domain = "berthd.github.io"

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

// PodName splits "namespace/name". A name without a namespace is one of "default".
func PodName(text string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(text, "/"); ok {
		return namespace, name
	}
	return "default", text
}

// namesPod is a request that names an admitted pod.
type namesPod interface {
	GetPodUid() string
	GetPodName() string
}

// FindPod returns the pod that a request names, by pod_uid or by pod_name. more are the
// violations of other fields.
func FindPod(view *ledger.View, req namesPod, more errdefs.Violations) (*ledger.Pod, error) {
	uid, name := req.GetPodUid(), req.GetPodName()
	var vs errdefs.Violations
	switch {
	case name != "":
		vs = Names("pod_name", name)
	default:
		vs = Names("pod_uid", uid)
	}
	if err := append(vs, more...).Err("request"); err != nil {
		return nil, err
	}
	if name != "" {
		return view.FindName(PodName(name))
	}
	pod, _, err := view.Find(ledger.Owner{Pod: uid})
	return pod, err
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
