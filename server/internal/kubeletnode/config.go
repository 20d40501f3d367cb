package kubeletnode

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
)

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// defaultDir is a kubelet's directory.
const defaultDir = "var/lib/kubelet"

// place is where a distribution keeps what a kubelet is started with. Paths are below the root; a field is empty if there is none.
type place struct {
	of                  string
	file, dropIns, args string
	// variables of the arguments.
	variables map[string]string
}

// places are looked at in this order if no kubelet runs.
var places = []place{
	{of: "kubeadm and most others", file: "var/lib/kubelet/config.yaml", args: "var/lib/kubelet/kubeadm-flags.env"},
	{of: "nodeadm", file: "etc/kubernetes/kubelet/config.json", dropIns: "etc/kubernetes/kubelet/config.json.d"},
	{of: "Amazon EKS before nodeadm", file: "etc/kubernetes/kubelet/kubelet-config.json"},
	{of: "k3s", dropIns: "var/lib/rancher/k3s/agent/etc/kubelet.conf.d"},
	{of: "RKE2", dropIns: "var/lib/rancher/rke2/agent/etc/kubelet.conf.d"},
	{of: "MicroK8s", args: "var/snap/microk8s/current/args/kubelet", variables: map[string]string{
		"${SNAP_DATA}": "/var/snap/microk8s/current", "${SNAP_COMMON}": "/var/snap/microk8s/common",
	}},
}

// started is what a kubelet was started with.
type started struct {
	from, file, dropIns, dir string
	// manifests and node are the path of static pods and the node's name that flags have.
	manifests, node string
	args            []string
}

// readConfig reads the kubelet's configuration, and finds the kubelet's directory.
func (r *reader) readConfig() error {
	s, ok := r.running()
	switch {
	case r.told != nil:
		if r.Dir = s.dir; !ok {
			r.Dir = defaultDir
		}
		r.found("configuration that the kubelet told", "", nil)
		return r.use(s, []config.File{{Path: "/configz", Data: r.told}}, nil)
	case !ok:
		if s, ok = r.placed(); !ok {
			return errdefs.NotFoundf("no configuration of a kubelet: expected a process kubelet in /proc, or one of %s", strings.Join(
				looked(), ", "))
		}
	}
	r.Dir = s.dir
	defaults, err := dropIn("defaults of a kubelet", nil)
	if err != nil {
		return err
	}
	main := []config.File{defaults}
	if s.file != "" {
		data, err := r.file(s.file)
		if r.found("configuration", s.file, err); err != nil {
			return errdefs.Invalidf("read the kubelet's configuration /%s: %w", s.file, reason(err))
		}
		main[0] = config.File{Path: "/" + s.file, Data: data}
	}
	dropIns, err := r.dropIns(s.dropIns)
	if err != nil {
		return err
	}
	flags, err := dropInsOf(s.args)
	if err != nil {
		return fmt.Errorf("%s: %w", s.from, err)
	}
	if len(flags) > 0 {
		r.found("flags that override the configuration", "", nil)
	}
	return r.use(s, main, append(dropIns, flags...))
}

// use merges files of a kubelet's configuration, and reads the manifests that they name.
func (r *reader) use(s started, main, dropIns []config.File) error {
	r.readManifests(staticPodPath(slices.Concat(main, dropIns), s.manifests), r.nodeName(s.node))
	c := config.Default()
	// The notes are about what has no effect on berthd's pods.
	if _, err := c.ApplyKubelets(main, dropIns); err != nil {
		return err
	}
	r.Config, r.Given = c, &c
	r.Config.Observed()
	r.Config.Listen, r.Config.StateDir = "/run/berth/berth.sock", "/var/lib/berth"
	return r.Config.Validate()
}

func looked() (out []string) {
	for _, p := range places {
		for _, file := range []string{p.file, p.dropIns, p.args} {
			if file != "" {
				out = append(out, "/"+file)
			}
		}
	}
	return out
}

// running finds the process of a kubelet below the root. Without one the root is a copy of files, or the kubelet is part of another
// program.
func (r *reader) running() (s started, ok bool) {
	processes, err := fs.Glob(r.root, "proc/[0-9]*/cmdline")
	if err != nil {
		return s, false
	}
	slices.SortFunc(processes, func(a, b string) int { return pid(a) - pid(b) })
	for _, file := range processes {
		data, err := r.file(file)
		if err != nil {
			continue
		}
		if !isKubelet(data) || r.inPod(path.Dir(file)) {
			continue
		}
		args := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
		s = started{from: "/" + file, args: args[1:], dir: defaultDir}
		s.paths()
		r.found("command line of the kubelet", file, nil)
		r.Running = true
		return s, true
	}
	return s, false
}

// isKubelet reports whether a command line is a kubelet's.
func isKubelet(cmdline []byte) bool {
	program, _, _ := bytes.Cut(cmdline, []byte{0})
	return path.Base(string(program)) == "kubelet"
}

// ofPod matches the cgroup of a pod's process. A reader in a pod of the node sees the paths from its own cgroup, such as /../../podUID/ID.
var ofPod = regexp.MustCompile(`kubepods|/pod[0-9a-f]{8}`)

// inPod reports whether a process is one of a pod, which may call itself as it likes.
func (r *reader) inPod(process string) bool {
	data, err := r.file(path.Join(process, "cgroup"))
	return err == nil && ofPod.Match(data)
}

func pid(cmdline string) int {
	n, err := strconv.Atoi(path.Base(path.Dir(cmdline)))
	if err != nil {
		return 0
	}
	return n
}

// paths takes the paths that arguments name.
func (s *started) paths() {
	for _, f := range flagsOf(s.args) {
		below := strings.TrimPrefix(path.Clean("/"+f.value), "/")
		switch f.name {
		case "config":
			s.file = below
		case "config-dir":
			s.dropIns = below
		case "root-dir":
			s.dir = below
		case "pod-manifest-path":
			s.manifests = below
		case "hostname-override":
			s.node = f.value
		}
	}
}

// placed finds the configuration at the places of distributions.
func (r *reader) placed() (s started, ok bool) {
	for _, p := range places {
		s = started{from: p.of, dir: defaultDir}
		if p.args != "" {
			if data, err := r.file(p.args); err == nil {
				s.from, s.args = "/"+p.args, arguments(data, p.variables)
				s.paths()
				r.found("arguments of the kubelet ("+p.of+")", p.args, nil)
				ok = true
			}
		}
		if p.file != "" && s.file == "" && r.exists(p.file) {
			s.file, ok = p.file, true
		}
		if p.dropIns != "" && r.exists(p.dropIns) {
			s.dropIns, ok = p.dropIns, true
		}
		if ok {
			return s, true
		}
	}
	return s, false
}

func (r *reader) exists(name string) bool {
	_, err := fs.Stat(r.root, name)
	return err == nil
}

// arguments reads a file of arguments: one in a line, or all in a variable of a shell.
func arguments(data []byte, variables map[string]string) (out []string) {
	for line := range bytes.Lines(data) {
		text := strings.TrimSpace(string(line))
		if strings.HasPrefix(text, "#") {
			continue
		}
		if name, value, ok := strings.Cut(text, "="); ok && !strings.HasPrefix(name, "-") {
			text = strings.Trim(value, `"'`)
		}
		for from, to := range variables {
			text = strings.ReplaceAll(text, from, to)
		}
		for _, arg := range strings.Fields(text) {
			out = append(out, strings.Trim(arg, `"'`))
		}
	}
	return out
}

// mostDropIns is how many drop-ins are read.
const mostDropIns = 1000

// dropIns reads a directory of drop-ins, in the order in which the kubelet walks through it.
func (r *reader) dropIns(dir string) (out []config.File, err error) {
	if dir == "" {
		return nil, nil
	}
	bytes := 0
	err = fs.WalkDir(r.root, dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != config.DropInExtension {
			return err // the kubelet ignores other files
		}
		data, err := r.file(name)
		if err != nil {
			return err
		}
		if bytes += len(data); bytes > Most || len(out) == mostDropIns {
			return errdefs.Invalidf("expected at most %d drop-ins, and %d MiB in all", mostDropIns, Most>>20)
		}
		out = append(out, config.File{Path: "/" + name, Data: data})
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the kubelet starts without it
	}
	if r.found("drop-ins of the configuration", dir, err); err != nil {
		return nil, errdefs.Invalidf("read the drop-ins of the kubelet's configuration /%s: %w", dir, reason(err))
	}
	return out, nil
}

// flag is a flag of a command line.
type flag struct{ name, value string }

// flagsOf returns the flags of arguments: --name=value, --name value, or --name for true.
func flagsOf(args []string) (out []flag) {
	for i := 0; i < len(args); i++ {
		text, ok := strings.CutPrefix(args[i], "--")
		if !ok {
			continue
		}
		name, value, given := strings.Cut(text, "=")
		if !given {
			value = "true"
			field, known := fields[name]
			if i+1 < len(args) && field.form != boolean && (known || !strings.HasPrefix(args[i+1], "-")) {
				i++
				value = args[i]
			}
		}
		out = append(out, flag{name, value})
	}
	return out
}

// form is how a flag's text becomes a field's value.
type form int

const (
	text form = iota
	number
	boolean
	list
	texts    // a=b,c=d
	booleans // a=true,b=false
	thresholds
	reserved
)

// fields are the fields of the configuration that flags of the kubelet override.
var fields = map[string]struct {
	field string
	form  form
}{
	"cgroup-driver":                   {"cgroupDriver", text},
	"cgroup-root":                     {"cgroupRoot", text},
	"cgroups-per-qos":                 {"cgroupsPerQOS", boolean},
	"cpu-cfs-quota":                   {"cpuCFSQuota", boolean},
	"cpu-cfs-quota-period":            {"cpuCFSQuotaPeriod", text},
	"cpu-manager-policy":              {"cpuManagerPolicy", text},
	"cpu-manager-policy-options":      {"cpuManagerPolicyOptions", texts},
	"cpu-manager-reconcile-period":    {"cpuManagerReconcilePeriod", text},
	"enforce-node-allocatable":        {"enforceNodeAllocatable", list},
	"eviction-hard":                   {"evictionHard", thresholds},
	"fail-swap-on":                    {"failSwapOn", boolean},
	"feature-gates":                   {"featureGates", booleans},
	"kube-reserved":                   {"kubeReserved", texts},
	"kube-reserved-cgroup":            {"kubeReservedCgroup", text},
	"max-pods":                        {"maxPods", number},
	"memory-manager-policy":           {"memoryManagerPolicy", text},
	"pod-max-pids":                    {"podPidsLimit", number},
	"pods-per-core":                   {"podsPerCore", number},
	"qos-reserved":                    {"qosReserved", texts},
	"reserved-cpus":                   {"reservedSystemCPUs", text},
	"reserved-memory":                 {"reservedMemory", reserved},
	"system-reserved":                 {"systemReserved", texts},
	"system-reserved-cgroup":          {"systemReservedCgroup", text},
	"topology-manager-policy":         {"topologyManagerPolicy", text},
	"topology-manager-policy-options": {"topologyManagerPolicyOptions", texts},
	"topology-manager-scope":          {"topologyManagerScope", text},
}

// dropInsOf converts flags that override the configuration to drop-ins, which have the same effect.
func dropInsOf(args []string) ([]config.File, error) {
	values := map[string]any{}
	for _, f := range flagsOf(args) {
		to, ok := fields[f.name]
		if !ok {
			continue
		}
		value, err := to.form.parse(f.value)
		if err != nil {
			return nil, errdefs.Invalidf("--%s=%s: %w", f.name, f.value, err)
		}
		if before, ok := values[to.field].(map[string]any); ok {
			maps.Copy(before, value.(map[string]any))
			continue
		} else if before, ok := values[to.field].([]any); ok && to.form == reserved {
			value = append(before, value.([]any)...)
		}
		values[to.field] = value
	}
	if len(values) == 0 {
		return nil, nil
	}
	// The map of a flag replaces that of the configuration, but for feature gates. A merge patch would unite them.
	without := map[string]any{}
	for field, value := range values {
		if _, ok := value.(map[string]any); ok && field != "featureGates" {
			without[field] = nil
		}
	}
	var out []config.File
	for i, patch := range []map[string]any{without, values} {
		if len(patch) == 0 {
			continue
		}
		f, err := dropIn(fmt.Sprintf("flags of the kubelet %d%s", i, config.DropInExtension), patch)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}
