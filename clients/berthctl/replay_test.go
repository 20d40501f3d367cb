package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
)

// incidentParts are the files of the bundle of docs/incident.md.
func incidentParts(t *testing.T) map[string][]byte {
	t.Helper()
	b, err := bundle.ReadFile("testdata/docs/incident.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, part := range bundle.Parts() {
		if data, err := b.Encode(part); err != nil {
			t.Fatal(err)
		} else if data != nil {
			out[part] = data
		}
	}
	return out
}

// archiveOf writes files into an archive, whatever they contain.
func archiveOf(t *testing.T, parts map[string][]byte) (path string) {
	t.Helper()
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	archive := tar.NewWriter(compressed)
	for name, data := range parts {
		err := archive.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(data))})
		if err == nil {
			_, err = archive.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	path = filepath.Join(t.TempDir(), "bundle.tar.gz")
	if err := errors.Join(archive.Close(), compressed.Close(), os.WriteFile(path, out.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestBundleNamesNoFile: a bundle without a machine does not lead to a file of this machine. The
// file here is no machine, so its message would be another one.
func TestBundleNamesNoFile(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	parts := incidentParts(t)
	delete(parts, bundle.MachinePart)
	parts[bundle.ConfigPart] = append([]byte("machine: "+secret+"\n"),
		regexp.MustCompile(`(?m)^machine:.*\n`).ReplaceAll(parts[bundle.ConfigPart], nil)...)
	path := archiveOf(t, parts)
	for _, args := range []string{"replay BUNDLE", "simulate --bundle BUNDLE -f -"} {
		r := invoke(t.Context(), "", podYAML("web"), strings.Fields(strings.Replace(args, "BUNDLE", path, 1))...)
		if r.code != command.ExitUsage || !strings.Contains(r.err, "--machine is missing") {
			t.Errorf("%s: %+v", args, r)
		}
	}
}

// TestMapOfflineCPUs: a map of a bundle has the CPUs that were offline.
func TestMapOfflineCPUs(t *testing.T) {
	t.Parallel()
	parts := incidentParts(t)
	whole, err := machine.Load(parts[bundle.MachinePart])
	if err != nil {
		t.Fatal(err)
	}
	m, err := whole.Without(cpuset.Of(15, 31))
	if err != nil {
		t.Fatal(err)
	}
	if parts[bundle.MachinePart], err = m.Marshal(); err != nil {
		t.Fatal(err)
	}
	parts[bundle.StatePart] = bytes.Replace(parts[bundle.StatePart], []byte(whole.Fingerprint()), []byte(m.Fingerprint()), 1)
	path := archiveOf(t, parts)
	if r := invoke(t.Context(), "", "", "map", "--bundle", path); !strings.Contains(r.out, "12 shared (of them 2 reserved), offline: 15") {
		t.Errorf("map --bundle: %+v", r)
	}
	for _, args := range []string{"replay BUNDLE --map", "simulate --bundle BUNDLE --map -f -"} {
		r := invoke(t.Context(), "", podYAML("other"), strings.Fields(strings.Replace(args, "BUNDLE", path, 1))...)
		if !strings.Contains(r.out, "offline: 15,31") {
			t.Errorf("%s: %+v", args, r)
		}
	}
	if r := invoke(t.Context(), "", "", "fit", "--bundle", path); !strings.Contains(r.out, "1     8/14") {
		t.Errorf("fit --bundle counts offline CPUs: %+v", r)
	}
}

// TestCostOfReplay: what a replay costs grows with the history and not with the square of it, also
// if one entry unbinds all containers. It measures, so it is not parallel.
func TestCostOfReplay(t *testing.T) {
	parts := incidentParts(t)
	newest, older, _ := bytes.Cut(parts[bundle.HistoryPart], []byte("\n"))
	var line struct {
		Number uint64         `json:"number"`
		Entry  map[string]any `json:"entry"`
	}
	if err := json.Unmarshal(newest, &line); err != nil {
		t.Fatal(err)
	}
	cost := func(n int) uint64 {
		var bindings []any
		for i := range n {
			bindings = append(bindings, map[string]any{"id": fmt.Sprint(i),
				"binding": map[string]any{"owner": map[string]any{"pod": line.Entry["pod"], "container": "c"}, "sequence": i}})
		}
		line.Entry["before"], line.Entry["verdict"] = map[string]any{"bindings": bindings}, ""
		changed, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		parts[bundle.HistoryPart] = append(append(changed, '\n'), older...)
		path := archiveOf(t, parts)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if r := invoke(t.Context(), "", "", "replay", path); r.code != command.ExitDone {
			t.Fatalf("%d containers: %+v", n, r)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	const n = 1000
	cost(n) // what is made once
	if small, large := cost(n), cost(8*n); large > 16*small {
		t.Errorf("%d containers cost %d bytes, and %d cost %d", n, small, 8*n, large)
	}
}

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
		"replay BUNDLE --topology-manager-policy best-effort --map",
		"replay BUNDLE -o wide --machine 2s1n4c2t --reserved-cpus 0", "map --bundle BUNDLE",
		"simulate --bundle BUNDLE --map -f -", "replay BUNDLE -o json --topology-manager-policy none", "map --bundle BUNDLE -o json",
	} {
		r := invoke(t.Context(), "", strings.ReplaceAll(podYAML("big"), "cpu: 2", "cpu: 12, memory: 1Gi"),
			strings.Fields(strings.Replace(args, "BUNDLE", path, 1))...)
		out := r.out + r.err
		if !strings.Contains(out, "red") || strings.Contains(out, "error") && !strings.Contains(out, "TopologyAffinityError") {
			t.Errorf("%s: the names are not in the output:\n%s", args, out)
		}
		if strings.ContainsAny(out, "\x1b\a\u202e") || strings.Contains(out, "\nred") {
			t.Errorf("%s: %q", args, out)
		}
	}
}

// TestBundleVerb: the file is written, and masked with --mask.
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
		if r.code != command.ExitDone || r.out != "wrote "+path+": "+row.want || r.err != "" {
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
	if b, err := bundle.Collect(client.Bundle(t.Context())); err != nil || len(b.History) != 7 {
		t.Errorf("%+v, %v", b, err)
	}
}
