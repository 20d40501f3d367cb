package config

import (
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

// FuzzApplyBerth: any text is read or refused by its fields, and what is read
// comes back from its dump.
func FuzzApplyBerth(f *testing.F) {
	head := "apiVersion: " + APIVersion + "\nkind: " + Kind + "\n"
	for _, text := range []string{
		"", "hello", head, head + "cpu: {policy: static, options: {a: 1}}\n", head + "reserved: {cpus: 0-3, kube: {cpu: 1}}\n",
		head + "access: [{uid: 1, roles: [read]}, x]\n", head + "cgroups: {reconcilePeriod: 3, root: {}}\n", head + "---\nx: y\n",
		head + "memory:\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := Default()
		if err := c.ApplyBerth("x", []byte(text)); err != nil {
			if errdefs.ClassOf(err) != errdefs.Invalid {
				t.Fatalf("%v is of class %v", err, errdefs.ClassOf(err))
			}
			return
		}
		_ = c.Validate()
		dump, err := c.Dump()
		if err != nil {
			t.Fatal(err)
		}
		again := Default()
		if err := again.ApplyBerth("dump", dump); err != nil {
			t.Fatalf("%v\n%s", err, dump)
		}
		if second, err := again.Dump(); err != nil || string(second) != string(dump) {
			t.Errorf("%v, dumped again:\n%s\nfirst:\n%s", err, second, dump)
		}
	})
}

// FuzzApplyKubelet: any text is read or refused.
func FuzzApplyKubelet(f *testing.F) {
	head := "apiVersion: " + kubeletAPIVersion + "\nkind: " + kubeletKind + "\n"
	for _, text := range []string{
		"", "hello", head, head + "kubeReserved: {cpu: 1}\nkubeReserved: {cpu: 2}\n---\n[",
		head + "MaxPods: 1\nevictionHard: {a: {b: c}}\n",
		`{"apiVersion":"` + kubeletAPIVersion + `","kind":"` + kubeletKind +
			`","maxPods":"1","maxPods":1,"reservedMemory":[{"limits":{"memory":1}}]}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := Default()
		if _, err := c.ApplyKubelet("x", []byte(text)); err != nil && errdefs.ClassOf(err) != errdefs.Invalid {
			t.Fatalf("%v is of class %v", err, errdefs.ClassOf(err))
		}
		_ = c.Validate()
	})
}
