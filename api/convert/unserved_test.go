package convert_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
)

// TestUnserved: ephemeral containers are named, and nothing else.
func TestUnserved(t *testing.T) {
	t.Parallel()
	for pod, want := range map[string][]string{
		kubernetesPod: nil,
		`{"spec": {"ephemeralContainers": [{"name": "debug", "image": "x", "targetContainerName": "main"}, {"name": "more"}]}}`: {
			"pod.spec.ephemeralContainers are not placed (debug, more)",
		},
	} {
		if got := convert.Unserved(fromJSON(t, pod)); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
	if got := convert.Unserved(nil); got != nil {
		t.Errorf("of no pod: %q", got)
	}
}

// TestUnsupportedFields: a field that decides the placement and is not supported refuses the
// pod, with its path. If the pod is invalid too, this is the reason.
func TestUnsupportedFields(t *testing.T) {
	t.Parallel()
	const main = `{"name": "main"}`
	pod := func(spec string) string {
		return `{"metadata": {"name": "a", "uid": "a"}, "spec": {` + spec + `}}`
	}
	for name, row := range map[string]struct {
		pod  string
		code errdefs.Code
		want []string
	}{
		"claims": {
			pod(`"resourceClaims": [{"name": "card", "resourceClaimTemplateName": "c"}],
				"containers": [{"name": "main", "resources": {"claims": [{"name": "card", "request": "one"}]}}]`),
			errdefs.UnsupportedPodField, []string{"pod.spec.resourceClaims", "pod.spec.containers[0].resources.claims"},
		},
		"claims of containers and the pod": {
			pod(`"initContainers": [{"name": "first", "resources": {"claims": [{"name": "a"}]}}], "containers": [` + main +
				`], "resources": {"claims": [{"name": "c"}]}`),
			errdefs.UnsupportedPodField, []string{"pod.spec.resources.claims", "pod.spec.initContainers[0].resources.claims"},
		},
		"ephemeral containers": {pod: pod(`"containers": [` + main + `], "ephemeralContainers": [{"name": "debug"}]`)},
		"ephemeral containers with resources": {pod(`"containers": [` + main +
			`], "ephemeralContainers": [{"name": "debug", "resources": {"limits": {"cpu": "1"}}}]`), errdefs.UnsupportedPodField,
			[]string{"pod.spec.ephemeralContainers[0].resources"}},
		"Linux": {pod: pod(`"containers": [` + main + `], "os": {"name": "linux"}`)},
		"Windows": {pod(`"containers": [` + main + `], "os": {"name": "windows"}`),
			errdefs.UnsupportedPodField, []string{"pod.spec.os.name"}},
		"invalid too": {
			pod(`"containers": [{"name": "main", "resources": {"limits": {"cpu": "much"}}}], "os": {"name": "windows"}`),
			"REQUEST_INVALID", []string{`pod.spec.containers[0].resources.limits["cpu"]`, "pod.spec.os.name"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := convert.Reader{}.Pod(fromJSON(t, row.pod))
			if len(row.want) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var e *errdefs.Error
			if !errors.As(err, &e) || e.Class != errdefs.Invalid {
				t.Fatalf("%v", err)
			}
			var fields []string
			for _, f := range e.Fields {
				fields = append(fields, f.Field)
			}
			if code, _ := errdefs.CodeOf(err, e.Class); code != row.code || !slices.Equal(fields, row.want) {
				t.Errorf("%s for %q, want %s for %q", code, fields, row.code, row.want)
			}
		})
	}
}
