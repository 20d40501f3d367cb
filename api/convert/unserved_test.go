package convert_test

import (
	"slices"
	"testing"

	"github.com/berthd/berth/api/convert"
)

// TestUnserved: what decides a place and is not served is named, as Kubernetes spells
// it, and what is served is not.
func TestUnserved(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		pod  string
		want []string
	}{
		"nothing": {pod: kubernetesPod},
		"claims": {
			pod: `{"spec": {"resourceClaims": [{"name": "nic", "resourceClaimName": "n"}, {"name": "card", "resourceClaimTemplateName": "c"}],
				"containers": [{"name": "main", "resources": {"claims": [{"name": "card", "request": "one"}]}}]}}`,
			want: []string{"pod.spec.resourceClaims requests dynamic resources (card, nic), which berth does not allocate"},
		},
		"claims of containers alone": {
			pod: `{"spec": {"initContainers": [{"name": "first", "resources": {"claims": [{"name": "a"}]}}],
				"containers": [{"name": "main", "resources": {"claims": [{"name": "b"}]}}], "resources": {"claims": [{"name": "c"}]}}}`,
			want: []string{"pod.spec.resourceClaims requests dynamic resources (a, b, c), which berth does not allocate"},
		},
		"ephemeral containers": {
			pod:  `{"spec": {"ephemeralContainers": [{"name": "debug", "image": "x", "targetContainerName": "main"}, {"name": "more"}]}}`,
			want: []string{"pod.spec.ephemeralContainers are not placed (debug, more)"},
		},
		"Linux":   {pod: `{"spec": {"os": {"name": "linux"}}}`},
		"Windows": {pod: `{"spec": {"os": {"name": "windows"}}}`, want: []string{`pod.spec.os.name is "windows", and berth gives places on linux`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := convert.Unserved(fromJSON(t, row.pod)); !slices.Equal(got, row.want) {
				t.Errorf("got  %q\nwant %q", got, row.want)
			}
		})
	}
	if got := convert.Unserved(nil); got != nil {
		t.Errorf("of no pod: %q", got)
	}
}
