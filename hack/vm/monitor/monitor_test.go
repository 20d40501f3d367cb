package monitor

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/vm/shape"
)

func TestRequest(t *testing.T) {
	t.Parallel()
	parts := []shape.Part{{Name: "cpu4", Device: map[string]any{"id": "cpu4", "driver": "max-x86_64-cpu"}}}
	for line, want := range map[string]struct {
		command string
		fails   bool
	}{
		"plug cpu4":    {"device_add", false},
		"unplug cpu4":  {"device_del", false},
		"plug cpu5":    {"", true},
		"plug ":        {"", true},
		"unplug cpu4 ": {"", true},
		"plugs cpu4":   {"", false},
		" plug cpu4":   {"", false},
		"":             {"", false},
	} {
		c, ok, err := Request(parts, line)
		if c.Execute != want.command || (err != nil) != want.fails || ok != (want.command != "" || want.fails) {
			t.Errorf("%q: %v, %v, %v", line, c, ok, err)
		}
		if want.command != "" && c.Arguments["id"] != "cpu4" {
			t.Errorf("%q: %v", line, c)
		}
	}
}

func TestExecute(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answer, says string }{
		"done":    {`{"return": {}}`, ""},
		"event":   {`{"event": "ACPI_DEVICE_OST"}` + "\n" + `{"return": {}}`, ""},
		"refused": {`{"error": {"class": "GenericError", "desc": "CPU is already present"}}`, "device_add: CPU is already present"},
		"garbled": {`return`, `QEMU said "return"`},
		"silent":  {"", "QEMU gave no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			heard := make(chan string, 1)
			go func() { heard <- serve(l, c.answer) }()
			err = Execute(t.Context(), socket, Command{"device_add", map[string]any{"id": "cpu4"}})
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want a word of %q", err, c.says)
			}
			if got, want := <-heard, `{"execute":"device_add","arguments":{"id":"cpu4"}}`; got != want {
				t.Errorf("QEMU heard %s, want %s", got, want)
			}
		})
	}
}

// serve is QEMU for one connection. It returns the command after the first one.
func serve(l net.Listener, answer string) (command string) {
	conn, err := l.Accept()
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	fmt.Fprintln(conn, `{"QMP": {"version": {}, "capabilities": []}}`)
	lines := bufio.NewScanner(conn)
	for i := range 2 {
		if !lines.Scan() {
			return command
		}
		command = lines.Text()
		if i == 0 {
			fmt.Fprintln(conn, `{"return": {}}`)
		} else if answer != "" {
			fmt.Fprintln(conn, answer)
		}
	}
	return command
}
