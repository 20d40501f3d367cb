package seccomp

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
)

// call is what a filter sees (struct seccomp_data).
type call struct {
	number, audit uint32
	args          [6]uint64
}

// run does what the kernel does with a filter.
func run(t interface{ Fatalf(string, ...any) }, program []Instruction, c call) uint32 {
	var a uint32
	for at := 0; at < len(program); at++ {
		i := program[at]
		branch := func(yes bool) {
			if yes {
				at += int(i.JT)
			} else {
				at += int(i.JF)
			}
		}
		switch i.Code {
		case load:
			switch {
			case i.K == numberOffset:
				a = c.number
			case i.K == auditOffset:
				a = c.audit
			case i.K >= argumentsOffset && i.K < argumentsOffset+48 && i.K%4 == 0:
				a = uint32(c.args[(i.K-argumentsOffset)/8] >> (8 * ((i.K - argumentsOffset) % 8)))
			default:
				t.Fatalf("load of offset %d", i.K)
			}
		case and:
			a &= i.K
		case jump:
			at += int(i.K)
		case jumpEqual:
			branch(a == i.K)
		case jumpGreater:
			branch(a > i.K)
		case jumpAtLeast:
			branch(a >= i.K)
		case answer:
			return i.K
		default:
			t.Fatalf("instruction %d has the code %#x", at, i.Code)
		}
	}
	t.Fatalf("the program has no end")
	return 0
}

// holds evaluates a condition by its definition.
func (c Condition) holds(args [6]uint64) bool {
	v := args[c.Index]
	switch c.Op {
	case Equal:
		return v == c.Value
	case NotEqual:
		return v != c.Value
	case Less:
		return v < c.Value
	case LessOrEqual:
		return v <= c.Value
	case Greater:
		return v > c.Value
	case GreaterOrEqual:
		return v >= c.Value
	default:
		return v&c.Value == c.Second
	}
}

// meant evaluates a profile by its definition.
func meant(p Profile, machine []architecture, c call) uint32 {
	for i, a := range machine {
		if a.audit != c.audit || i > 0 && !slices.Contains(p.Architectures, a.name) {
			continue
		}
		enosys := results[Errno] | uint32(syscall.ENOSYS)
		if a.foreign > 0 && c.number >= a.foreign {
			return enosys
		}
		for _, r := range p.Syscalls {
			named := slices.ContainsFunc(r.Names, func(name string) bool {
				number, ok := a.calls()[name]
				return ok && number == c.number
			})
			if named && !slices.ContainsFunc(r.Conditions, func(o Condition) bool { return !o.holds(c.args) }) {
				value, _ := r.Action.result(r.Errno)
				return value
			}
		}
		if newest := slices.Max(slices.Collect(maps.Values(a.calls()))); c.number > newest && !p.Default.permits() {
			return enosys
		}
		value, _ := p.Default.result(p.DefaultErrno)
		return value
	}
	return results[KillProcess]
}

var actions = []Action{Allow, Log, Errno, Trap, Trace, Kill, KillThread, KillProcess}

var operators = []Operator{NotEqual, Less, LessOrEqual, Equal, GreaterOrEqual, Greater, MaskedEqual}

// values are close to each other, and to where halves of a number meet.
func values() *rapid.Generator[uint64] {
	return rapid.OneOf(rapid.Uint64Range(0, 4), rapid.Uint64Range(1<<32-2, 1<<32+2),
		rapid.SampledFrom([]uint64{1 << 63, 1<<64 - 1, 5 << 32, 5<<32 + 3}), rapid.Uint64())
}

// TestFilters compiles random profiles and runs them on random calls: a filter
// answers what the profile means.
func TestFilters(t *testing.T) {
	t.Parallel()
	names := slices.Sorted(maps.Keys(x8664.calls()))[:12]
	for name, machine := range machines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				p := Profile{Default: rapid.SampledFrom(actions).Draw(t, "default")}
				if rapid.Bool().Draw(t, "compatible") {
					p.Architectures = []string{"SCMP_ARCH_X86"}
				}
				for range rapid.IntRange(0, 6).Draw(t, "rules") {
					r := Rule{Names: rapid.SliceOfN(rapid.SampledFrom(names), 1, 3).Draw(t, "names"),
						Action: rapid.SampledFrom(actions).Draw(t, "action")}
					for range rapid.IntRange(0, 3).Draw(t, "conditions") {
						r.Conditions = append(r.Conditions, Condition{
							Index: uint(rapid.IntRange(0, 1).Draw(t, "index")), Op: rapid.SampledFrom(operators).Draw(t, "op"),
							Value: values().Draw(t, "value"), Second: values().Draw(t, "second"),
						})
					}
					p.Syscalls = append(p.Syscalls, r)
				}
				f, err := compile(p, machine)
				if err != nil {
					t.Fatal(err)
				}
				arch := rapid.SampledFrom([]architecture{x8664, x86, aarch64}).Draw(t, "arch")
				numbers := []uint32{470, 471, 472, 1 << 30, 1<<30 + 1, 1<<32 - 1}
				for _, n := range names {
					if number, ok := arch.calls()[n]; ok {
						numbers = append(numbers, number)
					}
				}
				for range 20 {
					c := call{audit: arch.audit, number: rapid.SampledFrom(numbers).Draw(t, "number")}
					c.args[0], c.args[1] = values().Draw(t, "first"), values().Draw(t, "second argument")
					if got, want := run(t, f.Program, c), meant(p, machine, c); got != want {
						t.Fatalf("profile %+v answers call %+v with %#x, want %#x", p, c, got, want)
					}
				}
			})
		})
	}
}

// TestDefault runs the default profile on calls that matter.
func TestDefault(t *testing.T) {
	t.Parallel()
	const eperm, enosys = uint32(0x00050001), uint32(0x00050026)
	allow := results[Allow]
	admin := []string{"CAP_SYS_ADMIN", "CAP_SYS_CHROOT"}
	for name, machine := range machines {
		for _, row := range []struct {
			call string
			arg  uint64
			held []string
			want uint32
		}{
			{"read", 0, nil, allow}, {"execve", 0, nil, allow}, {"openat2", 0, nil, allow}, {"seccomp", 0, nil, allow},
			{"keyctl", 0, nil, eperm}, {"keyctl", 0, admin, eperm}, {"io_uring_setup", 0, admin, eperm}, {"userfaultfd", 0, nil, eperm},
			{"mount", 0, nil, eperm}, {"mount", 0, admin, allow}, {"unshare", 0x10000000, nil, eperm}, {"unshare", 0, admin, allow},
			{"bpf", 0, nil, eperm}, {"kexec_load", 0, admin, eperm}, {"chroot", 0, nil, eperm}, {"chroot", 0, admin, allow},
			{"clone", 0x11, nil, allow}, {"clone", 0x10000011, nil, eperm}, {"clone", 0x02000000, nil, eperm},
			{"clone", 0x10000011, admin, allow},
			{"clone3", 0, nil, enosys}, {"clone3", 0, admin, allow},
			{"socket", 2, nil, allow}, {"socket", 40, nil, eperm}, {"socket", 40, admin, eperm},
			{"personality", 0, nil, allow}, {"personality", 0xffffffff, nil, allow}, {"personality", 0x0040000, nil, eperm},
			{"set_mempolicy", 0, nil, eperm}, {"set_mempolicy", 0, []string{"CAP_SYS_NICE"}, allow},
		} {
			f, err := compile(Default(row.held), machine)
			if err != nil {
				t.Fatal(err)
			}
			c := call{audit: machine[0].audit, number: machine[0].calls()[row.call], args: [6]uint64{row.arg}}
			if got := run(t, f.Program, c); got != row.want {
				t.Errorf("%s: %s(%#x) with %v: %#x, want %#x", name, row.call, row.arg, row.held, got, row.want)
			}
			c.number = 4000
			if got := run(t, f.Program, c); got != enosys {
				t.Errorf("%s: a call that is not known yet: %#x", name, got)
			}
			c.audit = 1
			if got := run(t, f.Program, c); got != results[KillProcess] {
				t.Errorf("%s: another architecture: %#x", name, got)
			}
		}
	}
}

// TestDefaultIsWhole checks that each call is allowed, guarded or left out on purpose,
// and that no name is misspelt.
func TestDefaultIsWhole(t *testing.T) {
	t.Parallel()
	refused := strings.Fields(`_sysctl add_key afs_syscall arch_specific_syscall bdflush break create_module epoll_ctl_old epoll_wait_old ftime
		get_kernel_syms getpmsg gtty idle io_uring_enter io_uring_register io_uring_setup kexec_file_load kexec_load keyctl listns
		lock lsm_set_self_attr mpx nfsservctl file_setattr pivot_root prof profil putpmsg query_module request_key security stty
		swapoff swapon sysfs tuxcall ulimit uprobe uretprobe uselib userfaultfd ustat vm86 vm86old vserver`)
	where := map[string][]string{}
	note := func(list string, names []string) {
		for _, name := range names {
			if !known(name) {
				t.Errorf("%s names %q, which no table has", list, name)
			}
			if !slices.Contains(where[name], list) {
				where[name] = append(where[name], list)
			}
		}
	}
	note("allowed", strings.Fields(allowed))
	note("refused", refused)
	for _, names := range guarded {
		note("guarded", strings.Fields(names))
	}
	note("conditions", []string{"socket", "socketcall", "personality"})
	for _, a := range []architecture{x8664, x86, aarch64} {
		for name := range a.calls() {
			if len(where[name]) != 1 {
				t.Errorf("%s is in %v, want one list", name, where[name])
			}
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	const good = `{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "architectures": ["SCMP_ARCH_X86_64"], "flags": ["SECCOMP_FILTER_FLAG_LOG"],
		"syscalls": [{"names": ["read", "not_known_to_us"], "action": "SCMP_ACT_ALLOW", "comment": "c", "args": [{"index": 1, "value": 2, "valueTwo": 3, "op": "SCMP_CMP_MASKED_EQ"}]}]}`
	p, err := Parse(strings.NewReader(good))
	if err != nil || p.Default != Errno || *p.DefaultErrno != 38 || p.Syscalls[0].Conditions[0] != (Condition{1, 2, 3, MaskedEqual}) {
		t.Errorf("%+v, %v", p, err)
	}
	if f, err := Compile(p); machines[runtime.GOARCH] != nil && (err != nil || f.Flags != 2) {
		t.Errorf("%+v, %v", f, err)
	}
	for _, row := range []struct{ text, want string }{
		{"", "expected a seccomp profile"}, {"[]", "expected a seccomp profile"}, {"{} {}", "unexpected text after the profile"},
		{strings.Repeat(" ", 1<<20) + "{}", "more than"},
		{`{"defaultAction": "SCMP_ACT_ALLOW", "archMap": []}`, "archMap"},
		{`{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x"}`, "listenerPath"},
		{`{}`, "defaultAction"}, {`{"defaultAction": "SCMP_ACT_NOTIFY"}`, "SCMP_ACT_NOTIFY"},
		{`{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_FILTER_FLAG_NEW_LISTENER"]}`, "NEW_LISTENER"},
		{`{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 5000}`, "4095"},
		{`{"defaultAction": "SCMP_ACT_KILL", "defaultErrnoRet": 1}`, "errnoRet"},
		{`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mout"], "action": "SCMP_ACT_ERRNO"}]}`, `"mout"`},
		{`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": [], "action": "SCMP_ACT_ERRNO"}]}`, "syscalls[0]: names"},
		{`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "x"}]}`, `action "x"`},
		{`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_KILL", "args": [{"index": 6, "op": "SCMP_CMP_EQ"}]}]}`, "args[0].index 6"},
		{`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_KILL", "args": [{"op": "="}]}]}`,
			`args[0].op "="`},
	} {
		p, err := Parse(strings.NewReader(row.text))
		if err == nil {
			_, err = compile(p, machines["amd64"])
		}
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%.60s: %v, want %q", row.text, err, row.want)
		}
	}
	if _, err := compile(p, nil); errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("another machine: %v", err)
	}
	large := Profile{Default: Allow}
	for i := range 3000 {
		large.Syscalls = append(large.Syscalls, Rule{Names: []string{"read"}, Action: Kill,
			Conditions: []Condition{{Value: uint64(i), Op: Equal}}})
	}
	if _, err := compile(large, machines["amd64"]); errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("a filter that is too large: %v", err)
	}
	large.Syscalls = []Rule{{Names: []string{"read"}, Action: Kill, Conditions: make([]Condition, 100)}}
	for i := range large.Syscalls[0].Conditions {
		large.Syscalls[0].Conditions[i].Op = Equal
	}
	if _, err := compile(large, machines["amd64"]); errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("a rule that is too long: %v", err)
	}
}

// numbered is a line of golang.org/x/sys/unix.
var numbered = regexp.MustCompile(`(?m)^\s+SYS_(\w+)\s+=\s+(\d+)$`)

// TestTables compares the tables with what they were made from. The module may know
// newer calls: they are answered with ENOSYS until they were reviewed.
func TestTables(t *testing.T) {
	t.Parallel()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Skipf("needs the go command, to find the module: %v", err)
	}
	for arch, a := range map[string]architecture{"amd64": x8664, "386": x86, "arm64": aarch64} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+arch+".go"))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for _, m := range numbered.FindAllStringSubmatch(string(text), -1) {
			want[strings.ToLower(m[1])] = m[2]
		}
		for name, number := range a.calls() {
			if want[name] != fmt.Sprint(number) {
				t.Errorf("%s: %s is %d, and %q in the module", a.name, name, number, want[name])
			}
		}
		if len(a.calls()) < 300 {
			t.Errorf("%s has %d calls", a.name, len(a.calls()))
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		filter, err := compile(p, machines["amd64"])
		if err != nil {
			return
		}
		c := call{audit: x8664.audit}
		if got, want := run(t, filter.Program, c), meant(p, machines["amd64"], c); got != want {
			t.Errorf("%s: %#x, want %#x", fmt.Sprint(p), got, want)
		}
	})
}
