package seccomp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"syscall"

	"github.com/berthd/berth/managers/errdefs"
)

// Profile has the results of system calls.
type Profile struct {
	Default Action `json:"defaultAction"`
	// DefaultErrno is the error of the default action; nil for EPERM.
	DefaultErrno *uint `json:"defaultErrnoRet,omitempty"`
	// Architectures in addition to the machine's own; a call of another one kills the process.
	Architectures []string `json:"architectures,omitempty"`
	Flags         []string `json:"flags,omitempty"`
	Syscalls      []Rule   `json:"syscalls,omitempty"`
	// Comment is for people.
	Comment string `json:"comment,omitempty"`
}

// Rule answers some calls; all of its conditions have to hold.
type Rule struct {
	Names      []string    `json:"names"`
	Action     Action      `json:"action"`
	Errno      *uint       `json:"errnoRet,omitempty"`
	Conditions []Condition `json:"args,omitempty"`
	Comment    string      `json:"comment,omitempty"`
}

// Condition compares an argument of a call.
type Condition struct {
	Index uint   `json:"index"`
	Value uint64 `json:"value"`
	// Second is what the argument has to be behind the mask Value, for MaskedEqual.
	Second uint64   `json:"valueTwo,omitempty"`
	Op     Operator `json:"op"`
}

// Operator compares an argument with a value, both without a sign.
type Operator string

// The operators.
const (
	NotEqual       Operator = "SCMP_CMP_NE"
	Less           Operator = "SCMP_CMP_LT"
	LessOrEqual    Operator = "SCMP_CMP_LE"
	Equal          Operator = "SCMP_CMP_EQ"
	GreaterOrEqual Operator = "SCMP_CMP_GE"
	Greater        Operator = "SCMP_CMP_GT"
	MaskedEqual    Operator = "SCMP_CMP_MASKED_EQ"
)

// Action names what a filter answers.
type Action string

// The actions.
const (
	Allow       Action = "SCMP_ACT_ALLOW"
	Log         Action = "SCMP_ACT_LOG"
	Errno       Action = "SCMP_ACT_ERRNO"
	Trap        Action = "SCMP_ACT_TRAP"
	Trace       Action = "SCMP_ACT_TRACE"
	Kill        Action = "SCMP_ACT_KILL"
	KillThread  Action = "SCMP_ACT_KILL_THREAD"
	KillProcess Action = "SCMP_ACT_KILL_PROCESS"
)

// results are the values that filters return (include/uapi/linux/seccomp.h).
var results = map[Action]uint32{
	Allow: 0x7fff0000, Log: 0x7ffc0000, Trace: 0x7ff00000, Errno: 0x00050000, Trap: 0x00030000,
	Kill: 0, KillThread: 0, KillProcess: 0x80000000,
}

// result gives what a filter returns for an action.
func (a Action) result(errno *uint) (uint32, error) {
	value, ok := results[a]
	switch {
	case !ok:
		return 0, errdefs.Unsupportedf("action %q is not known: expected SCMP_ACT_ALLOW, _LOG, _ERRNO, _TRAP, _TRACE, _KILL, _KILL_THREAD or _KILL_PROCESS", a)
	case a != Errno && a != Trace:
		if errno != nil {
			return 0, errdefs.Invalidf("errnoRet: action %s has no error", a)
		}
		return value, nil
	case errno == nil:
		return value | uint32(syscall.EPERM), nil
	case *errno > 4095:
		return 0, errdefs.Invalidf("errnoRet %d: expected an error number, at most 4095", *errno)
	}
	return value | uint32(*errno), nil
}

// permits reports whether a call happens with this answer.
func (a Action) permits() bool { return a == Allow || a == Log }

// flags are the flags of seccomp(2) that a profile may have.
var flags = map[string]uint32{
	"SECCOMP_FILTER_FLAG_TSYNC": 0, // it is always set
	"SECCOMP_FILTER_FLAG_LOG":   1 << 1, "SECCOMP_FILTER_FLAG_SPEC_ALLOW": 1 << 2,
}

// Most limits a profile, in bytes.
const Most = 1 << 20

// Parse reads a profile. An unknown field is an error, because it would be ignored.
func Parse(r io.Reader) (Profile, error) {
	text, err := io.ReadAll(io.LimitReader(r, Most+1))
	if err != nil {
		return Profile{}, err
	}
	if len(text) > Most {
		return Profile{}, errdefs.Invalidf("the profile has more than %d bytes", Most)
	}
	var p Profile
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return Profile{}, errdefs.Invalidf("expected a seccomp profile as the OCI runtime specification has it: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return Profile{}, errdefs.Invalidf("unexpected text after the profile")
	}
	return p, nil
}

// flagBits gives the flags of seccomp(2).
func (p Profile) flagBits() (bits uint32, err error) {
	for _, f := range p.Flags {
		bit, ok := flags[f]
		if !ok {
			return 0, errdefs.Unsupportedf("flag %q is not known", f)
		}
		bits |= bit
	}
	return bits, nil
}

// check refuses what would not be done.
func (p Profile) check() error {
	if _, err := p.Default.result(p.DefaultErrno); err != nil {
		return fmt.Errorf("defaultAction: %w", err)
	}
	for i, r := range p.Syscalls {
		if err := r.check(); err != nil {
			return fmt.Errorf("syscalls[%d]: %w", i, err)
		}
	}
	return nil
}

func (r Rule) check() error {
	if len(r.Names) == 0 {
		return errdefs.Invalidf("names: expected at least one")
	}
	if _, err := r.Action.result(r.Errno); err != nil {
		return err
	}
	for _, name := range r.Names {
		// An unknown allowed call stays refused, which is safe. An unknown refused call would be
		// allowed, so it is an error.
		if !r.Action.permits() && !known(name) {
			return errdefs.Invalidf("system call %q is not known", name)
		}
	}
	for i, c := range r.Conditions {
		if c.Index > 5 {
			return errdefs.Invalidf("args[%d].index %d: a system call has six arguments", i, c.Index)
		}
		if !c.Op.known() {
			return errdefs.Invalidf("args[%d].op %q is not known", i, c.Op)
		}
	}
	return nil
}

func (o Operator) known() bool {
	switch o {
	case NotEqual, Less, LessOrEqual, Equal, GreaterOrEqual, Greater, MaskedEqual:
		return true
	}
	return false
}
