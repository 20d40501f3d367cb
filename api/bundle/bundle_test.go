package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// Each name is of one kind, so that a search finds where it has stayed.
const (
	uid       = "3e7f-secretuid"
	namespace = "secretspace"
	name      = "secretpod"
	container = "secretcontainer"
	deviceID  = "secretdevice"
	process   = "secretagent"
	owner     = "secretowner"
	host      = "secrethost"
	path      = "/secret/path"
	password  = "hunter2"
)

// full is a bundle with all kinds of names, and with secrets where berthd has them.
func full(t *testing.T) *bundle.Bundle {
	t.Helper()
	m := machinetest.Build("2s1n4c2t", machinetest.Named(host))
	clock := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	now := func() time.Time { clock = clock.Add(time.Second); return clock }
	l := ledgertest.OpenRecording(t, journal.Options{
		Journal: ledgertest.NewJournal(), Rules: ledger.Rules{Machine: m, ConfigDigest: "digest"},
	}, history.Limits{Entries: 100}, now)
	pod := workload.Pod{
		UID: uid, Namespace: namespace, Name: name,
		Labels: map[string]string{"secretlabel": "secretvalue"},
		Annotations: map[string]string{"example.com/token": password, workload.SpecificationAnnotation: "from secretfile",
			workload.MovableAnnotation: string(workload.MovableAnywhere)},
		PriorityClassName: "secretclass",
		Containers: []workload.Container{{
			Name: container, Limits: workload.Quantities{workload.CPU: 1000},
			ExternalDevices: []workload.ExternalDevice{{Resource: "example.com/nic", ID: deviceID + "2", Claim: &workload.ExternalClaim{
				Name: "secretclaim", Driver: "secretdriver", Pool: host, Device: deviceID, CDI: []string{"secretcdi"},
			}}},
		}},
	}
	digest, err := pod.Digest()
	if err != nil {
		t.Fatal(err)
	}
	record := &ledger.Pod{
		Pod: pod, Digest: digest, OwnedBy: owner, AdmissionID: "secretadmission", ResizeID: "secretresize",
		EarlierResizeIDs: []string{"secretearlier"},
		CgroupParent:     path, AdmittedAt: clock,
		Claims: []ledger.Claim{
			{Owner: ledger.Owner{Pod: uid, Container: container}, Provider: "cpu", Resource: "cpu",
				CPUs: &ledger.CPUs{Set: cpuset.Of(1), Use: ledger.CPUExclusive}},
			{Owner: ledger.Owner{Pod: uid, Container: container}, Provider: "device", Resource: "example.com/gpu", Devices: &ledger.Devices{
				Devices: []ledger.Device{{ID: deviceID}}, Response: []byte(password),
			}},
			{Owner: ledger.Owner{Pod: uid, Container: container}, Provider: "secretprovider", Resource: "example.com/other",
				Opaque: []byte(password)},
		},
	}
	call := func(what string, r *history.Request) *history.Call {
		return &history.Call{Name: what, Time: clock, Caller: &history.Caller{UID: 4242, GID: 4343, PID: 4444, Name: process}, Request: r}
	}
	admit := history.WithCall(t.Context(), call("Admit", &history.Request{Pod: history.Recorded(&pod), Owner: owner}))
	update := func(c *history.Call, change func(d *ledger.Draft)) {
		ctx := admit
		if c != nil {
			ctx = history.WithCall(t.Context(), c)
		}
		if _, err := l.Update(ctx, func(d *ledger.Draft) error { change(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	l.Refused(admit, history.Refusal{Verdict: "rejected", Reason: "OutOfcpu", Message: "pod " + name + " does not fit", Pod: record,
		View: l.View(), AdmissionID: "secretrefusal"})
	update(nil, func(d *ledger.Draft) { d.PutPod(record) })
	update(call("PreStartContainer", nil), func(d *ledger.Draft) {
		d.Bind(ledger.Binding{ID: "secretruntimeid", Owner: ledger.Owner{Pod: uid, Container: container}, CgroupPath: path})
	})
	update(call("PreStartContainer", nil), func(d *ledger.Draft) { d.Unbind("secretruntimeid") })
	resized := *record
	resized.ResizeID = "secretnewer"
	resized.Move = &ledger.Move{
		From: record.Claims[:1], To: record.Claims[:1], Migrating: []string{container}, Stayed: []string{container},
		Before: "secretdigest", Reason: "to make room for pod secretspace/secretnew",
	}
	update(call("Resize", &history.Request{Changes: []workload.Change{{Container: container,
		Limits: workload.Quantities{workload.CPU: 1000}}}, Owner: owner}),
		func(d *ledger.Draft) { d.PutPod(&resized) })
	update(nil, func(d *ledger.Draft) {
		d.PutUnknownLive(ledger.UnknownLivePod{
			UID: "secretunknown", Namespace: namespace, Name: "secretother", OwnedBy: owner, Since: clock,
			Claims: []ledger.Claim{{Owner: ledger.Owner{Pod: "secretunknown", Container: "secretplace"}, Provider: "x", Resource: "y",
				Opaque: []byte(password)}},
			Bindings: []ledger.RecordedBinding{{ID: "secretbinding", Container: container, CgroupPath: path}},
		})
		d.PutExternalProvider(ledger.ExternalProvider{Name: "secretprovider", Endpoint: path})
		d.PutResource(ledger.SeenResource{Name: "example.com/gpu"})
		d.Bind(ledger.Binding{ID: "secretcontainerid", Owner: ledger.Owner{Pod: uid, Container: container}, CgroupPath: path})
	})
	c := config.Default()
	c.RootDir, c.Listen, c.ListenGroup, c.StateDir, c.RuntimeEndpoint, c.HTTP = path, path+"/sock", "secretgroup", path, "unix://"+path,
		"unix://"+path
	c.Node.SystemCgroup, c.Node.AgentPIDFile, c.Node.StorageDir = path, path, path
	c.Providers.External.Required = []string{"secretprovider"}
	c.Machine = path
	b := &bundle.Bundle{
		About:   bundle.About{Format: bundle.Format, Time: clock, Berthd: "1", Berthctl: "2", Kernel: "6"},
		Machine: m, Config: &c, Node: node.Facts{MaxPIDs: 7, StorageBytes: 8},
		Devices: []bundle.Resource{{Name: "example.com/gpu", Connected: true, Devices: []bundle.Device{{ID: deviceID, Healthy: true}}}},
		State:   history.SnapshotOf(l.View()), Metrics: []byte("berth_pod{pod=\"" + name + "\"} 1\n"),
	}
	if err := l.Entries(t.Context(), 0, func(e *history.Entry, damage error) bool {
		line, err := bundle.LineOf(e, damage)
		if err != nil {
			t.Fatal(err)
		}
		b.History = append(b.History, line)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return b
}

// text is everything in a bundle.
func text(t *testing.T, b *bundle.Bundle) string {
	t.Helper()
	var all strings.Builder
	for _, part := range bundle.Parts() {
		data, err := b.Encode(part)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "== %s\n%s\n", part, data)
	}
	return all.String()
}

// TestNoSecrets: what plugins and providers have answered, and annotations that berth does not use,
// are in no bundle.
func TestNoSecrets(t *testing.T) {
	t.Parallel()
	all := text(t, full(t))
	for _, secret := range []string{password, "aHVudGVyMg", "example.com/token"} { // as text and in base64
		if strings.Contains(all, secret) {
			t.Errorf("%q is in the bundle:\n%s", secret, all)
		}
	}
	if !strings.Contains(all, name) || !strings.Contains(all, deviceID) || !strings.Contains(all, process) {
		t.Errorf("the test has planted nothing:\n%s", all)
	}
}

// TestMask: no name of the original is left, the same name has the same made name, and made names
// have the order of the originals.
func TestMask(t *testing.T) {
	t.Parallel()
	b := full(t)
	noted := b.Machine.Snapshot()
	noted.Description, noted.Notes = "rack 7 of secretcustomer", []string{"/sys/secretfile was not read"}
	var err error
	if b.Machine, err = machine.New(noted); err != nil {
		t.Fatal(err)
	}
	fingerprint := b.State.Machine
	b.Config.Topology.Options = map[string]string{topology.OptionMaxNodes: "9", "secretoption": "true"}
	b.Config.CPU.Options = map[string]string{cpu.FullPCPUsOnly: "secretvalue"}
	b.State.Override = &ledger.Override{Over: "over",
		Settings: json.RawMessage(`{"topology":{"policy":"none","options":{"secretoption":"x"}}}`)}
	for i, l := range b.History {
		e, err := history.ReadText(l.Number, l.Entry)
		if err != nil {
			t.Fatal(err)
		}
		if e.Before == nil {
			continue
		}
		e.Before.Rules = &ledger.PastRules{Machine: fingerprint, Config: "digest", Override: b.State.Override}
		if b.History[i], err = bundle.LineOf(e, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Mask(); err != nil {
		t.Fatal(err)
	}
	if b.State.Machine != fingerprint || b.State.Override.Over != "over" || b.Config.Topology.Options[topology.OptionMaxNodes] != "9" {
		t.Errorf("machine %s, override %+v, options %v", b.State.Machine, b.State.Override, b.Config.Topology.Options)
	}
	all := text(t, b)
	for _, word := range []string{"secret", "hunter2", "3e7f", "4242", "4343", "4444", "aHVudGVyMg"} {
		if at := strings.Index(all, word); at >= 0 {
			t.Errorf("%q has stayed: …%s…", word, all[max(0, at-200):at+100])
		}
	}
	p := b.State.Pods[0].Record
	if p.UID() == "" || p.Pod.Namespace != "namespace-1" || p.Pod.Annotations[workload.SpecificationAnnotation] == "" {
		t.Errorf("pod %+v", p)
	}
	if p.Pod.Movable() != workload.MovableAnywhere || p.Move == nil || len(p.Move.Migrating) != 1 || len(p.Move.Stayed) != 1 {
		t.Errorf("it may move %s, and moves %+v", p.Pod.Movable(), p.Move)
	}
	if digest, err := p.Pod.Digest(); err != nil || digest != p.Digest {
		t.Errorf("the digest is %s, that of the masked pod %s, %v", p.Digest, digest, err)
	}
	if got := b.DevicesByResource()["example.com/gpu"][0].ID; !strings.Contains(all, `"id": "`+got+`"`) ||
		got != p.Claims[1].Devices.Devices[0].ID {
		t.Errorf("the device is %s, and the pod has %+v", got, p.Claims[1].Devices)
	}
	for _, l := range b.History {
		e, err := history.ReadText(l.Number, l.Entry)
		if err != nil {
			t.Fatal(err)
		}
		if e.Call == "Admit" && e.Verdict == "admitted" && e.Before.Unknown == nil && e.Pod != p.UID() {
			t.Errorf("entry %d is about %s, the pod is %s", e.Number, e.Pod, p.UID())
		}
	}
	if _, err := b.State.View(b.Machine); err != nil {
		t.Error(err)
	}
	if !b.About.Masked || b.Metrics != nil {
		t.Errorf("about %+v", b.About)
	}
}

// TestMadeNamesKeepTheOrder: also of more than ten names.
func TestMadeNamesKeepTheOrder(t *testing.T) {
	t.Parallel()
	var list []bundle.Device
	for i := range 120 {
		list = append(list, bundle.Device{ID: fmt.Sprintf("gpu%d", i)})
	}
	b := &bundle.Bundle{Devices: []bundle.Resource{{Name: "a/x", Connected: true, Devices: list},
		{Name: "a/y", Connected: true, Devices: list}}}
	if err := b.Mask(); err != nil {
		t.Fatal(err)
	}
	for _, r := range b.Devices {
		for i := range list {
			for j := range list {
				if (list[i].ID < list[j].ID) != (r.Devices[i].ID < r.Devices[j].ID) {
					t.Fatalf("%s and %s became %s and %s", list[i].ID, list[j].ID, r.Devices[i].ID, r.Devices[j].ID)
				}
			}
		}
	}
}

// TestRoundTrip: what is written is read, and is the same state.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	b := full(t)
	var w bytes.Buffer
	if err := b.Write(&w); err != nil {
		t.Fatal(err)
	}
	again, err := bundle.Read(bytes.NewReader(w.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	b.Config.Machine = "" // a path of another machine
	if got, want := text(t, again), text(t, b); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	view, err := again.State.View(again.Machine)
	if err != nil {
		t.Fatal(err)
	}
	if got := history.SnapshotOf(view); !reflect.DeepEqual(asJSON(t, got), asJSON(t, b.State)) {
		t.Errorf("got %s\nwant %s", asJSON(t, got), asJSON(t, b.State))
	}
	var parts []*inspectv1.StreamBundleResponse
	for _, part := range bundle.Parts() {
		data, err := b.Encode(part)
		if err != nil {
			t.Fatal(err)
		}
		for _, half := range [][]byte{data[:len(data)/2], data[len(data)/2:]} {
			parts = append(parts, &inspectv1.StreamBundleResponse{Name: part, Data: half})
		}
	}
	if got, err := bundle.Collect(stream(nil, parts...)); err != nil || text(t, got) != text(t, b) {
		t.Errorf("in parts: %v", err)
	}
	twice := append(parts, &inspectv1.StreamBundleResponse{Name: bundle.AboutPart})
	if _, err := bundle.Collect(stream(nil, twice...)); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a part twice: %v", err)
	}
	if _, err := bundle.Collect(stream(io.ErrUnexpectedEOF, parts...)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an error after the last part: %v", err)
	}
}

// stream returns parts, and then an error if it is not nil.
func stream(end error, parts ...*inspectv1.StreamBundleResponse) iter.Seq2[*inspectv1.StreamBundleResponse, error] {
	return func(yield func(*inspectv1.StreamBundleResponse, error) bool) {
		for _, p := range parts {
			if !yield(p, nil) {
				return
			}
		}
		if end != nil {
			yield(nil, end)
		}
	}
}

// TestStreamEndsEarly: what ends before the state is no bundle.
func TestStreamEndsEarly(t *testing.T) {
	t.Parallel()
	for missing, parts := range map[string]map[string]string{
		"about.json": {}, "state.json": {bundle.AboutPart: about, bundle.NodePart: "{}"},
	} {
		var sent []*inspectv1.StreamBundleResponse
		for name, data := range parts {
			sent = append(sent, &inspectv1.StreamBundleResponse{Name: name, Data: []byte(data)})
		}
		if _, err := bundle.Collect(stream(nil, sent...)); errdefs.ClassOf(err) != errdefs.Invalid ||
			!strings.Contains(err.Error(), missing) {
			t.Errorf("%s is missing: %v", missing, err)
		}
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// member is a member of a made-up archive.
type member struct {
	header tar.Header
	data   string
}

const about = `{"format":1,"time":"2026-11-20T03:00:00Z"}`

// packed makes an archive, which ends where a member has less data than its header says.
func packed(t testing.TB, members ...member) []byte {
	t.Helper()
	var w bytes.Buffer
	compressed := gzip.NewWriter(&w)
	archive := tar.NewWriter(compressed)
	for _, m := range members {
		if m.header.Typeflag == 0 {
			m.header.Typeflag = tar.TypeReg
		}
		if m.header.Size == 0 && m.header.Typeflag == tar.TypeReg {
			m.header.Size = int64(len(m.data))
		}
		if err := archive.WriteHeader(&m.header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, m.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil && !strings.Contains(err.Error(), "missed writing") {
		t.Fatal(err)
	}
	if err := compressed.Close(); err != nil {
		t.Fatal(err)
	}
	return w.Bytes()
}

func file(name, data string) member { return member{tar.Header{Name: name}, data} }

// TestHostileArchives: errors name the part, whatever an archive declares.
func TestHostileArchives(t *testing.T) {
	t.Parallel()
	good := file(bundle.AboutPart, about)
	for name, row := range map[string]struct {
		archive []byte
		want    string
	}{
		"empty":         {nil, "no archive compressed with gzip"},
		"text":          {[]byte("text"), "no archive compressed with gzip"},
		"no tar":        {packedText(t, "text"), "no tar archive, or it is cut off"},
		"nothing in it": {packed(t), "about.json is missing"},
		"no about":      {packed(t, file(bundle.NodePart, "{}")), "about.json is missing"},
		"newer":         {packed(t, file(bundle.AboutPart, `{"format":2}`)), "about.json: the format is 2, and this berthctl reads 1"},
		"twice":         {packed(t, good, good), "about.json is listed twice"},
		"path":          {packed(t, good, file("../../etc/passwd", "x")), `"../../etc/passwd" is no part of a bundle`},
		"absolute":      {packed(t, good, file("/state.json", "x")), `"/state.json" is no part`},
		"escape code":   {packed(t, good, file("\x1b[31mred", "x")), `"\x1b[31mred" is no part`},
		"directory": {packed(t, good, member{tar.Header{Name: "state.json/", Typeflag: tar.TypeDir}, ""}),
			`"state.json/" is no part`},
		"link": {packed(t, good, member{tar.Header{Name: "state.json", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"},
			""}), "state.json is no regular file"},
		"hard link": {packed(t, good, member{tar.Header{Name: "state.json", Typeflag: tar.TypeLink, Linkname: "about.json"}, ""}),
			"state.json is no regular file"},
		"10 GB": {packed(t, good, member{tar.Header{Name: "history.jsonl", Size: 10 << 30}, "x"}),
			"history.jsonl has 10737418240 bytes, and may have at most"},
		"cut off":       {packed(t, good, member{tar.Header{Name: "state.json", Size: 1000}, "x"}), "state.json: unexpected EOF"},
		"bomb":          {packed(t, good, file("config.yaml", strings.Repeat(" ", 1<<20+1))), "config.yaml has 1048577 bytes"},
		"unknown field": {packed(t, good, file("node.json", `{"max":1}`)), `node.json: json: unknown field "max"`},
		"two values":    {packed(t, good, file("node.json", `{} {}`)), "node.json: unexpected text after the value"},
		"machine":       {packed(t, good, file("machine.json", `{}`)), "machine.json: read machine: version is missing"},
		"config":        {packed(t, good, file("config.yaml", "colour: red")), "config.yaml: "},
		"state":         {packed(t, good, file("state.json", `{"pods":3}`)), "state.json: json: cannot unmarshal number"},
		"devices":       {packed(t, good, file("devices.json", `[{"name":3}]`)), "devices.json: "},
		"history":       {packed(t, good, file("history.jsonl", "{\"number\":2}\nx\n")), "history.jsonl: line 2: invalid character 'x'"},
		"history in order": {packed(t, good, file("history.jsonl", "{\"number\":2}\n{\"number\":2}\n")),
			"history.jsonl: line 2: entry 2 follows entry 2"},
		"values": {packed(t, good,
			file("devices.json", `[{"name":"a","connected":true,"devices":[`+strings.Repeat("{},", 1<<21)+"{}]}]")),
			"devices.json: it has more than 4194304 values"},
		"values of state": {packed(t, good,
			file("state.json", `{"revision":1,"machine":"\\\"","config":"","pods":[],"containers":[`+strings.Repeat("null,", 1<<22)+"{}]}")), "state.json: it has more than 4194304 values"},
		"values of a line": {packed(t, good, file("history.jsonl", `{"number":2,"entry":[`+strings.Repeat("[],", 1<<18)+"0]}")),
			"history.jsonl: line 1: it has more than 524288 values"},
		"long line": {packed(t, good, file("history.jsonl", `{"damage":"`+strings.Repeat("x", 5<<20)+`"}`)),
			"history.jsonl: line 1 has"},
	} {
		if _, err := bundle.Read(bytes.NewReader(row.archive)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
	if _, err := bundle.Read(bytes.NewReader(packed(t, good, file("node.json", "{}")))); err != nil {
		t.Errorf("a small bundle: %v", err)
	}
}

// packedText compresses a text.
func packedText(t *testing.T, text string) []byte {
	t.Helper()
	var w bytes.Buffer
	compressed := gzip.NewWriter(&w)
	if _, err := io.WriteString(compressed, text); err != nil {
		t.Fatal(err)
	}
	if err := compressed.Close(); err != nil {
		t.Fatal(err)
	}
	return w.Bytes()
}

// TestContradictoryState: a state that contradicts itself is refused.
func TestContradictoryState(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(s *history.Snapshot){
		"a pod twice": func(s *history.Snapshot) { s.Pods = append(s.Pods, s.Pods[0]) },
		"no record":   func(s *history.Snapshot) { s.Pods[0].Record = nil },
		"a CPU twice": func(s *history.Snapshot) {
			other := *s.Pods[0].Record
			other.Pod.UID = "other"
			s.Pods = append(s.Pods, history.Pod{Record: &other, Claims: moved(s.Pods[0].Claims, "other")})
		},
		"another's claim":     func(s *history.Snapshot) { s.Pods[0].Claims = moved(s.Pods[0].Claims, "other") },
		"admitted and not":    func(s *history.Snapshot) { s.Unknown[0].UID = s.Pods[0].Record.UID() },
		"a revision too low":  func(s *history.Snapshot) { s.Epoch, s.Revision = 5, 1 },
		"an epoch too high":   func(s *history.Snapshot) { s.Epoch = 1 << 60 },
		"a container of none": func(s *history.Snapshot) { s.Bindings[0].Binding.Owner.Pod = "nobody" },
	} {
		b := full(t)
		spoil(b.State)
		if _, err := b.State.View(b.Machine); errdefs.ClassOf(err) != errdefs.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func moved(claims []ledger.Claim, uid string) (out []ledger.Claim) {
	for _, c := range claims {
		c.Owner.Pod = uid
		out = append(out, c)
	}
	return out
}

// TestWriteFile: only its owner reads it, a link is replaced and not followed, and after a failure
// the old file is there and nothing else.
func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := &bundle.Bundle{About: bundle.About{Format: bundle.Format}}
	victim, link, plain := filepath.Join(dir, "victim"), filepath.Join(dir, "link"), filepath.Join(dir, "plain")
	if err := errors.Join(os.WriteFile(victim, []byte("mine"), 0o644), os.Symlink(victim, link),
		os.WriteFile(plain, []byte("old"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, plain, filepath.Join(dir, "new")} {
		if err := b.WriteFile(path); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v", path, info.Mode(), err)
		}
		if _, err := bundle.ReadFile(path); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "mine" {
		t.Errorf("the link's target is %q, %v", text, err)
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "socket")) // as a device, it is no regular file
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, socket.Addr().String()} {
		if err := b.WriteFile(path); errdefs.ClassOf(err) != errdefs.Precondition {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := socket.Close(); err != nil {
		t.Fatal(err)
	}
	broken := &bundle.Bundle{Metrics: make([]byte, 65<<20)}
	if err := broken.WriteFile(plain); errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), bundle.MetricsPart) {
		t.Errorf("too large: %v", err)
	}
	if _, err := bundle.ReadFile(plain); err != nil {
		t.Errorf("the old file is gone: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 4 {
		t.Errorf("%v is left, %v", left, err)
	}
	if _, err := bundle.ReadFile(dir); err == nil {
		t.Error("a directory was read")
	}
}

// FuzzParts reads parts of any content: an error, or a bundle that can be written, masked and put on
// its machine.
func FuzzParts(f *testing.F) {
	f.Add(`{"format":1}`, `{"revision":1,"machine":"","config":"","reservation":{"reserved":""},"pods":[]}`,
		`{"number":1,"entry":{"time":"2026-11-20T03:00:00Z","revision":1}}`, `[]`, "cpu: {policy: static}")
	f.Add(`{}`, `{"pods":[{"record":{"pod":{"uid":"u","containers":[{"name":"c"}]},"digest":"","qos":"","admission_id":"","admitted_at":"2026-11-20T03:00:00Z"},"claims":[{"owner":{"pod":"u","container":"c"},"provider":"cpu","resource":"cpu","cpus":{"set":"1-3","use":"exclusive"}}]}]}`, `{"number":2,"damage":"x"}`, `[{"name":"a/b","devices":[{"id":"x","nodes":"0"}]}]`, "")
	m := machinetest.Build("2s1n4c2t")
	f.Fuzz(func(t *testing.T, about, state, entries, devices, configuration string) {
		b := &bundle.Bundle{Machine: m}
		for part, data := range map[string]string{
			bundle.AboutPart: about, bundle.StatePart: state, bundle.HistoryPart: entries, bundle.DevicesPart: devices,
			bundle.ConfigPart: configuration,
		} {
			if err := b.Decode(part, []byte(data)); err != nil && errdefs.ClassOf(err) != errdefs.Invalid {
				t.Fatalf("%s: %v", part, err)
			}
		}
		if b.State != nil {
			_, _ = b.State.View(m)
		}
		if err := b.EachEntry(func(*history.Entry, error) bool { return true }); err != nil {
			t.Fatal(err)
		}
		_ = b.Mask()
		if err := b.Write(io.Discard); err != nil {
			t.Fatal(err)
		}
	})
}
