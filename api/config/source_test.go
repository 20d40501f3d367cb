package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

// TestKubeletFileIsTakenAsItIs: what a kubelet only warns of, or does not look at,
// is noted, and counts as it does for the kubelet.
func TestKubeletFileIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	const (
		head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
		json = `{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration"`
	)
	for name, row := range map[string]struct {
		text   string
		notes  []string
		policy string // cpuManagerPolicy
		kube   string // kubeReserved, by name
	}{
		"a key twice": {head + "cpuManagerPolicy: none\ncpuManagerPolicy: static\n",
			[]string{`f: line 4: key "cpuManagerPolicy" already set in map: the later one takes effect`}, "static", ""},
		"a section twice": {head + "kubeReserved: {cpu: 1, memory: 1Gi}\nkubeReserved: {cpu: 2}\n",
			[]string{`f: line 4: key "kubeReserved" already set in map: the later one takes effect`}, "none", "cpu=2"},
		"two keys twice": {head + "kubeReserved:\n  cpu: 1\n  cpu: 2\nmaxPods: 1\nmaxPods: 2\n", []string{
			`f: line 5: key "cpu" already set in map: the later one takes effect`,
			`f: line 7: key "maxPods" already set in map: the later one takes effect`}, "none", "cpu=2"},
		"an object of JSON twice": {json + `,"kubeReserved":{"cpu":"1","memory":"1Gi"},"kubeReserved":{"cpu":"2"}}`,
			[]string{`f: line 1: key "kubeReserved" already set in map: the later one takes effect`}, "none", "cpu=2 memory=1Gi"},
		"a second document": {head + "cpuManagerPolicy: static\n---\ncpuManagerPolicy: none\n",
			[]string{"f: only the first of 2 documents is read"}, "static", ""},
		"a second document that is none": {head + "cpuManagerPolicy: static\n---\na: [\n",
			[]string{"f: only the first of 2 documents is read"}, "static", ""},
		"an empty one before": {"# mine\n---\n" + head + "cpuManagerPolicy: static\n---\n# the end\n", nil, "static", ""},
		"a field that nobody knows": {head + "kubeReserved: {cpu: 1}\nbogus: {a: 1}\n",
			[]string{"f: bogus: unknown field"}, "none", "cpu=1"},
		"the case of a field": {head + "CPUManagerPolicy: static\nKubeReserved: {cpu: 1}\n", []string{
			"f: CPUManagerPolicy: unknown field, expected cpuManagerPolicy", "f: KubeReserved: unknown field, expected kubeReserved"},
			"none", ""},
		"numbers for texts": {head + "kubeReserved: {cpu: 0.5, memory: 12345678901234567890}\n", nil, "none",
			"cpu=0.5 memory=12345678901234567890"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Default()
			notes, err := c.ApplyKubelet("f", []byte(row.text))
			if err != nil || !slices.Equal(notes, row.notes) {
				t.Errorf("%q, %v; want %q", notes, err, row.notes)
			}
			var kube []string
			for r, text := range c.Reserved.Kube {
				kube = append(kube, r+"="+text)
			}
			slices.Sort(kube)
			if c.CPU.Policy != row.policy || strings.Join(kube, " ") != row.kube {
				t.Errorf("policy %s, reserved %q", c.CPU.Policy, kube)
			}
		})
	}
	// An error comes with the notes, too: what is wrong may be the effect of what they name.
	twice := `already set in map: the later one takes effect`
	for name, row := range map[string]struct {
		text  string
		notes []string
	}{
		"no YAML":                         {"a: [", nil},
		"a misfit":                        {head + "maxPods: x\n", nil},
		"a misfit in JSON, replaced":      {json + `,"maxPods":"x","maxPods":1}`, []string{`f: line 1: key "maxPods" ` + twice}},
		"the head is in a later document": {"a: 1\n---\n" + head, []string{"f: only the first of 2 documents is read"}},
		"a misfit beside what is only warned of": {head + "maxPods: 1\nmaxPods: x\nbogus: 1\n",
			[]string{`f: line 4: key "maxPods" ` + twice, "f: bogus: unknown field"}},
		"an unknown field with an end that lacks": {head + "bogus: {\n", nil},
		"an unknown field and no set of CPUs": {head + "bogus: 1\nreservedSystemCPUs: x\nevictionSoft: {memory.available: 1Gi}\n",
			[]string{"f: bogus: unknown field", "f: evictionSoft has no effect"}},
	} {
		c := Default()
		notes, err := c.ApplyKubelet("f", []byte(row.text))
		if errdefs.ClassOf(err) != errdefs.Invalid || !strings.HasPrefix(err.Error(), "f") ||
			!slices.EqualFunc(notes, row.notes, strings.HasPrefix) {
			t.Errorf("%s: %q, %v; want class invalid and %q", name, notes, err, row.notes)
		}
	}
}

// TestDocumentsAreCounted: berth's own file with another document is refused, however
// that is set off.
func TestDocumentsAreCounted(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: " + APIVersion + "\nkind: " + Kind + "\ncpu: {policy: static}\n"
	for name, row := range map[string]struct {
		text string
		want string // part of the error; empty where there is none
	}{
		"one":                           {head, ""},
		"one, begun and ended":          {"%YAML 1.1\n# mine\n---\n" + head + "...\t# the end\n", ""},
		"empty ones around it":          {"# mine\n--- # yours\n" + head + "---\n\n--- \r\n# the end\n", ""},
		"a text with such a line":       {head + "reserved: {system: {cpu: \"1\"}} # ---\n #--- \n", ""},
		"two":                           {head + "---\ncpu: {policy: none}\n", "expected one document, found 2"},
		"two, on Windows":               {head + "---\r\ncpu: {policy: none}\r\n", "expected one document, found 2"},
		"two, and a remark":             {head + "--- # the second\ncpu: {policy: none}\n", "expected one document, found 2"},
		"two, the second beside":        {head + "--- {cpu: {policy: none}}\n", "expected one document, found 2"},
		"two, the first ended":          {head + "...\ncpu: {policy: none}\n", "expected one document, found 2"},
		"three, of which two are wrong": {head + "---\ta: [\n--- b: [\n", "expected one document, found 3"},
	} {
		c := Default()
		switch err := c.ApplyBerth("f", []byte(row.text)); {
		case row.want == "":
			if err != nil || c.CPU.Policy != "static" {
				t.Errorf("%s: policy %s, %v", name, c.CPU.Policy, err)
			}
		case errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), row.want):
			t.Errorf("%s: %v, want %s", name, err, row.want)
		}
	}
}
