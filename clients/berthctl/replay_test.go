package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/clients/berth"
)

// TestHostileBundle: names in a bundle are text, whatever they contain. No verb prints their escape
// codes or line ends.
func TestHostileBundle(t *testing.T) {
	t.Parallel()
	b, err := bundle.ReadFile("testdata/docs/incident.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	hostile := bundle.Bundle{}
	for _, part := range bundle.Parts() {
		data, err := b.Encode(part)
		if err != nil {
			t.Fatal(err)
		}
		// The names of entries, and those of the state; a request with such names is refused.
		for _, field := range [][2]string{
			{`"call":"`, `Admit`}, {`"name":"`, `web","verdict`}, {`"reason":"`, `Topology`}, {`"message":"`, `Resources`},
			{`"namespace": "`, `shop`}, {`"name": "`, `db`},
		} {
			if part == bundle.StatePart || part == bundle.HistoryPart {
				data = bytes.ReplaceAll(data, []byte(field[0]+field[1]), []byte(field[0]+`\u001b[31mred\u0007\n\u202e`+field[1]))
			}
		}
		if err := hostile.Decode(part, data); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "hostile.tar.gz")
	if err := hostile.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"replay BUNDLE --policy best-effort --map", "replay BUNDLE -o wide --machine 2s1n4c2t --reserved-cpus 0", "map --bundle BUNDLE",
		"simulate --bundle BUNDLE --map -f -", "replay BUNDLE -o json --policy none", "map --bundle BUNDLE -o json",
	} {
		r := invoke(t.Context(), "", strings.ReplaceAll(podYAML("big"), "cpu: 2", "cpu: 12, memory: 1Gi"), strings.Fields(strings.Replace(args, "BUNDLE", path, 1))...)
		out := r.out + r.err
		if !strings.Contains(out, "red") || strings.Contains(out, "error") && !strings.Contains(out, "TopologyAffinityError") {
			t.Errorf("%s: the names are not in the output:\n%s", args, out)
		}
		if strings.ContainsAny(out, "\x1b\a\u202e") || strings.Contains(out, "\nred") {
			t.Errorf("%s: %q", args, out)
		}
	}
}

// TestBundleVerb: the file is there, and masked where that was asked for.
func TestBundleVerb(t *testing.T) {
	t.Parallel()
	socket := (&fake{}).start(t)
	dir := t.TempDir()
	for name, row := range map[string]struct{ args, want string }{
		"plain":  {"", "3 pods, 7 entries\n"},
		"masked": {" --mask", "3 pods, 7 entries, masked\nnot in it: metrics.txt: it names pods\n"},
	} {
		path := filepath.Join(dir, name)
		r := invoke(t.Context(), socket, "", strings.Fields("bundle -o "+path+row.args)...)
		if r.code != exitDone || r.out != "wrote "+path+": "+row.want || r.err != "" {
			t.Errorf("%s: %+v", name, r)
		}
		b, err := bundle.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if b.About.Masked != (row.args != "") || b.About.Berthctl == "" || b.About.Berthd == "" {
			t.Errorf("%s: %+v", name, b.About)
		}
	}
	client, err := berth.Dial(t.Context(), socket, berth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if b, err := client.Bundle(t.Context()); err != nil || len(b.History) != 7 {
		t.Errorf("%+v, %v", b, err)
	}
}
