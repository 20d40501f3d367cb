package fits

import (
	"slices"
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// TestPodsFingerprint compares with fingerprints that the package podfingerprint of
// github.com/k8stopologyawareschedwg publishes for these pods.
func TestPodsFingerprint(t *testing.T) {
	for _, c := range []struct {
		pods [][2]string
		want string
	}{
		{nil, "pfp0v001ef46db3751d8e999"}, // XXH64 of nothing
		{[][2]string{{"production", "jaeger-dpgjk"}, {"production", "nginx-rt684"}, {"production", "envoy-g9m22"}},
			"pfp0v001607b76a0e9d3aeb4"},
		{[][2]string{
			{"analytics", "controller-69dkj"}, {"kube-public", "subscriber-tq6v7"}, {"kube-public", "transformer-hfbng"},
			{"kube-public", "validator-c6pn5"}, {"kube-system", "proxy-wszrd"}, {"middleware", "processor-jkrl4"},
			{"network", "gateway-vsll5"}, {"network", "importer-kzdfr"}, {"network", "importer-q5vt9"}, {"staging", "prometheus-bwgbn"},
		}, "pfp0v001567144e4a561bb5a"},
	} {
		var pods []*ledger.Pod
		for _, p := range c.pods {
			pods = append(pods, &ledger.Pod{Pod: workload.Pod{Namespace: p[0], Name: p[1]}})
		}
		if got := podsFingerprint(pods); got != c.want {
			t.Errorf("%v: %s, want %s", c.pods, got, c.want)
		}
		slices.Reverse(pods)
		if got := podsFingerprint(append(pods, pods...)); got != c.want {
			t.Errorf("%v twice and backwards: %s, want %s", c.pods, got, c.want)
		}
	}
}
