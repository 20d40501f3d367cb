// Package monitor plugs parts into a running virtual machine, and unplugs them, over QEMU's monitor.
//
// # Words
//
//   - monitor: the socket on which QEMU takes commands (QMP): a line of JSON each, with a line as the answer.
//   - request: a line that a test in the VM prints to have a part plugged or unplugged (package job).
//
// # Invariants
//
//   - A request names a part of the machine's shape. What a test prints is never a command by itself.
//   - Done means that QEMU has told the VM. When the VM's kernel has followed, only the VM can see.
package monitor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/berthd/berth/hack/vm/job"
	"github.com/berthd/berth/hack/vm/shape"
)

// timeout bounds a command.
const timeout = time.Minute

// Command is one command of QEMU.
type Command struct {
	Execute   string         `json:"execute"`
	Arguments map[string]any `json:"arguments,omitempty"`
}

// Request returns the command for a line that a test has printed. ok is false if the line is no request.
func Request(parts []shape.Part, line string) (c Command, ok bool, err error) {
	name, plugs := strings.CutPrefix(line, job.Plug)
	if !plugs {
		if name, ok = strings.CutPrefix(line, job.Unplug); !ok {
			return Command{}, false, nil
		}
	}
	for _, p := range parts {
		switch {
		case p.Name != name:
		case plugs:
			return Command{"device_add", p.Device}, true, nil
		default:
			return Command{"device_del", map[string]any{"id": p.Name}}, true, nil
		}
	}
	return Command{}, true, fmt.Errorf("%q: the machine has no part of this name", line)
}

// reply is a line of QEMU: a greeting, an answer or an event.
type reply struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
}

// Execute carries out a command on the socket of a running QEMU.
func Execute(ctx context.Context, socket string, c Command) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	lines := bufio.NewScanner(conn)
	// QEMU takes other commands only after this one.
	for _, each := range []Command{{Execute: "qmp_capabilities"}, c} {
		if err := exchange(conn, lines, each); err != nil {
			return fmt.Errorf("%s: %w", each.Execute, errors.Join(err, context.Cause(ctx)))
		}
	}
	return nil
}

// exchange sends a command and reads lines up to its answer.
func exchange(conn net.Conn, lines *bufio.Scanner, c Command) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if _, err := conn.Write(append(text, '\n')); err != nil {
		return err
	}
	for lines.Scan() {
		var r reply
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("QEMU said %q: %w", lines.Bytes(), err)
		}
		switch {
		case r.Error != nil:
			return errors.New(r.Error.Desc)
		case r.Return != nil:
			return nil
		}
	}
	return errors.Join(errors.New("QEMU gave no answer"), lines.Err())
}
