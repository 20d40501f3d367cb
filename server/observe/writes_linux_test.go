package observe_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	programs "github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/server/internal/kubeletnode/nodetest"
)

// reading are the verbs that read a kubelet's node. POD is a pod of the recording, REJECTED one that its kubelet has rejected, MORE a
// manifest, and OUT a file for what is written elsewhere.
var reading = []string{
	"admit -f MORE --dry-run --explain", "bundle -o OUT", "check --now", "compare", "describe node", "describe pod POD", "explain POD",
	"explain REJECTED", "fit -f MORE", "get containers", "get cpus", "get devices", "get memory", "get node", "get pods -o json",
	"get rejections", "hints -f MORE", "history", "map", "plan defrag --for MORE", "podresources list", "policy get",
	"policy set --topology-manager-policy restricted --dry-run", "simulate -f MORE", "top --once",
	"topology", "watch", "web --no-browser --listen 127.0.0.1:0",
}

// endless are the verbs that an interrupt ends.
var endless = []string{"watch", "web"}

// TestNoWrites: berthctl opens nothing of a node's files for writing and changes nothing. The kernel tells of each file that was open for
// writing, and with the files on a read-only mount each verb prints the same.
func TestNoWrites(t *testing.T) {
	t.Parallel()
	built := berthctl(t)
	byShape := map[string][]nodetest.Recording{}
	for _, r := range nodetest.Recordings(t) {
		byShape[r.Shape] = append(byShape[r.Shape], r)
	}
	for shape, list := range byShape {
		t.Run(shape, func(t *testing.T) {
			t.Parallel()
			root := list[0].Write(t)
			for _, r := range list {
				r.Rewrite(t, root)
				verbs := []string{"get pods -o json", "check --now"}
				if r.Name == mostVerbs {
					verbs = reading
				}
				places := placesIn(t, root)
				inMountNamespace(t, func() error { return noWrites(t, built, root, verbs, places) })
			}
		})
	}
}

// mostVerbs is a recording with rejected pods and devices.
const mostVerbs = "v2-systemd-restricted/full-B"

// berthctl builds the program.
func berthctl(t *testing.T) string {
	t.Helper()
	dir, err := ctl.Dir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "berthctl")
}

var ctl = programs.NewPrograms(map[string]string{"berthctl": "clients/berthctl"})

func TestMain(m *testing.M) {
	code := m.Run()
	ctl.Remove()
	os.Exit(code)
}

// placesIn are the words of a verb by what they stand for, with the pods of a recording.
func placesIn(t *testing.T, root string) *strings.Replacer {
	t.Helper()
	dir := t.TempDir()
	more := filepath.Join(dir, "more.yaml")
	if err := os.WriteFile(more, []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: more, uid: u-more}\n"+
		"spec: {containers: [{name: main, resources: {limits: {cpu: '1', memory: 64Mi}}}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pod, rejected := "", ""
	for _, p := range podsOf(t, filepath.Join(root, nodetest.PodsFile)) {
		name := p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()
		if p.Rejected() {
			rejected = name
		} else if !p.Ended {
			pod = name
		}
	}
	return strings.NewReplacer("MORE", more, "OUT", filepath.Join(dir, "out.tar.gz"), "POD", pod, "REJECTED", rejected)
}

// noWrites runs verbs on a node in a mount namespace of its own.
func noWrites(t *testing.T, built, root string, verbs []string, places *strings.Replacer) error {
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at itself: %w", root, err)
	}
	watch, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_NONBLOCK|unix.FAN_CLOEXEC, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fanotify_init: %w", err)
	}
	defer unix.Close(watch)
	const writes = unix.FAN_CLOSE_WRITE | unix.FAN_MODIFY
	if err := unix.FanotifyMark(watch, unix.FAN_MARK_ADD|unix.FAN_MARK_MOUNT, writes, unix.AT_FDCWD, root); err != nil {
		return fmt.Errorf("fanotify_mark %s: %w", root, err)
	}
	// It tells of a file that is only opened for writing.
	control := filepath.Join(root, nodetest.PodsFile)
	f, err := os.OpenFile(control, os.O_RDWR, 0)
	if err == nil {
		err = f.Close()
	}
	if names := written(watch); err != nil || !slices.Equal(names, []string{control}) {
		t.Errorf("fanotify tells of %q, %v; want %s", names, err, control)
	}
	before := listing(t, root)
	outputs := map[string]string{}
	for _, verb := range verbs {
		outputs[verb] = runVerb(t, exec.Command(built), root, verb, places)
		if names := written(watch); len(names) > 0 {
			t.Errorf("%s has opened for writing: %q", verb, names)
		}
	}
	if after := listing(t, root); after != before {
		t.Errorf("files have changed:\n%s\nbefore\n%s", after, before)
	}
	if err := unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount %s read-only: %w", root, err)
	}
	if err := os.WriteFile(filepath.Join(root, "new"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("a new file on the read-only mount: %v", err)
	}
	for _, verb := range verbs {
		if got := runVerb(t, exec.Command(built), root, verb, places); got != outputs[verb] {
			t.Errorf("%s prints on a read-only mount\n%s\notherwise\n%s", verb, got, outputs[verb])
		}
	}
	return nil
}

// moment are ids, times and durations, which differ from run to run.
var moment = regexp.MustCompile(`[0-9A-Z]{26}|20[0-9]{2}-[0-9-]+T[0-9:.]+Z?|[0-9.]+(ms|µs|s|m|h)\b`)

// runVerb returns what a verb prints. A verdict, findings and a refusal are answers, too.
func runVerb(t *testing.T, cmd *exec.Cmd, root, verb string, places *strings.Replacer) string {
	args := []string{"--kubelet=" + root, "--pods", filepath.Join(root, nodetest.PodsFile)}
	for word := range strings.FieldsSeq(verb) {
		args = append(args, places.Replace(word))
	}
	var out, errs bytes.Buffer
	cmd.Args, cmd.Stderr = append(cmd.Args, args...), &errs
	cmd.Env = append(os.Environ(), "BERTH_ENDPOINT=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	printed, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return ""
	}
	ends := !slices.Contains(endless, strings.Fields(verb)[0])
	if ends {
		_, err = out.ReadFrom(printed)
	} else if _, err = printed.Read(make([]byte, 1)); err == nil { // it has read the node
		err = unix.Kill(-cmd.Process.Pid, unix.SIGINT)
		_, _ = io.Copy(io.Discard, printed)
	}
	if err != nil {
		t.Errorf("%s: %v", verb, err)
	}
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); ends && err != nil && code != 1 && code != 3 || errs.Len()+out.Len() == 0 {
		t.Errorf("%s: %v, %s%s", verb, err, out.String(), errs.String())
	}
	return moment.ReplaceAllString(out.String(), "-")
}

// written are the files of which fanotify has told, each once.
func written(watch int) (names []string) {
	buffer := make([]byte, 1<<16)
	for {
		n, err := unix.Read(watch, buffer)
		if err != nil || n == 0 {
			return slices.Compact(slices.Sorted(slices.Values(names)))
		}
		for data := buffer[:n]; len(data) >= int(unix.FAN_EVENT_METADATA_LEN); {
			fd := int(int32(uint32(data[16]) | uint32(data[17])<<8 | uint32(data[18])<<16 | uint32(data[19])<<24))
			name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			if err != nil {
				name = err.Error()
			}
			names = append(names, name)
			_ = unix.Close(fd)
			data = data[int(data[0])|int(data[1])<<8:]
		}
	}
}

// listing are the files below a directory with all that a change of them changes.
func listing(t *testing.T, root string) string {
	t.Helper()
	var out strings.Builder
	if err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		s := info.Sys().(*syscall.Stat_t)
		fmt.Fprintln(&out, name, info.Mode(), s.Size, s.Ino, s.Nlink, s.Uid, s.Mtim, s.Ctim)
		return nil
	}); err != nil {
		t.Error(err) // this is not the test's goroutine
	}
	return out.String()
}

// inMountNamespace calls a function on a thread with mounts of its own. Programs that it starts have them, too.
func inMountNamespace(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("a mount namespace and fanotify need root: the effective user is %d", os.Geteuid())
	}
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if errors.Is(err, unix.EPERM) {
			ended <- fmt.Errorf("a mount namespace: %w", err)
			return
		}
		if err == nil {
			err = f()
		}
		ended <- err
	}()
	err := <-ended
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("needs CAP_SYS_ADMIN, and a kernel with fanotify: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// opens are calls that open a file for writing, or change one by its name.
var opens = regexp.MustCompile(`O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND|\b(creat|mkdir|mkdirat|unlink|unlinkat|rename|renameat|renameat2|` +
	`link|linkat|symlink|symlinkat|truncate|chmod|fchmodat|chown|fchownat|lchown|utimensat|setxattr|lsetxattr|mknod|mknodat)\(`)

// TestOpensForReading: strace of each verb shows no file that is opened for writing, or changed, wherever it is, but for the output of
// a bundle.
func TestOpensForReading(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skipf("needs strace: %v; TestNoWrites has the kernel's view", err)
	}
	log := filepath.Join(t.TempDir(), "strace")
	traced := func(program string) *exec.Cmd {
		return exec.Command(strace, "-f", "-qq", "-y", "-s", "4096", "-e", "trace=file", "-o", log, program)
	}
	lines := func() []string {
		t.Helper()
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(text), "\n")
	}
	control := filepath.Join(t.TempDir(), "file")
	cmd := traced("sh")
	cmd.Args = append(cmd.Args, "-c", "echo x >"+control)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("strace cannot trace: %v: %s", err, text)
	}
	if !slices.ContainsFunc(lines(), func(line string) bool { return strings.Contains(line, control) && opens.MatchString(line) }) {
		t.Fatalf("strace does not show that %s was opened:\n%s", control, strings.Join(lines(), "\n"))
	}
	built := berthctl(t)
	recordings := nodetest.Recordings(t)
	i := slices.IndexFunc(recordings, func(r nodetest.Recording) bool { return r.Name == mostVerbs })
	if i < 0 {
		t.Fatalf("there is no recording %s", mostVerbs)
	}
	root := recordings[i].Write(t)
	places := placesIn(t, root)
	for _, verb := range reading {
		runVerb(t, traced(built), root, verb, places)
		read := 0
		for _, line := range lines() {
			if strings.Contains(line, root) {
				read++
			}
			output := places.Replace("OUT")
			if opens.MatchString(line) && !(strings.Contains(verb, "OUT") && strings.Contains(line, filepath.Dir(output))) {
				t.Errorf("%s: %s", verb, line)
			}
		}
		if read < 100 {
			t.Errorf("%s: strace shows %d calls with the node's files", verb, read)
		}
	}
}
