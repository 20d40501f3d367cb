// Package journal writes log lines to systemd's journal with a field for each key, by the protocol
// of https://systemd.io/JOURNAL_NATIVE_PROTOCOL/.
//
// # Words
//
//   - field: a name in capitals, and a value, which may have any bytes.
//   - entry: the fields of a log line, in one datagram.
//
// # Invariants
//
//   - An entry that cannot be sent is written by the fallback: no line is lost.
//   - MESSAGE is the whole line, so "journalctl -u berthd" shows what a terminal would.
package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Socket is the path on which the journal takes entries.
const Socket = "/run/systemd/journal/socket"

// Connected reports whether a file is the journal's. JOURNAL_STREAM has the device and inode
// numbers of standard error.
func Connected(env func(string) string, file *os.File) bool {
	info, err := file.Stat()
	if err != nil {
		return false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && env("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", s.Dev, s.Ino)
}

// Handler writes to the journal. It is safe for concurrent use.
type Handler struct {
	level    slog.Leveler
	link     *link
	fallback slog.Handler
	// group is put in front of names, preset has the fields of WithAttrs.
	group  string
	preset []field
}

// New makes a handler for the journal's socket. It connects at the first line.
func New(socket string, level slog.Leveler, fallback slog.Handler) *Handler {
	return &Handler{level: level, link: &link{path: socket}, fallback: fallback}
}

// link is the connection, which is made again after an error.
type link struct {
	path string
	mu   sync.Mutex
	conn *net.UnixConn // guarded by mu
}

func (l *link) send(entry []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	for range 2 {
		if l.conn == nil {
			if l.conn, err = net.DialUnix("unixgram", nil, &net.UnixAddr{Name: l.path, Net: "unixgram"}); err != nil {
				l.conn = nil
				return err
			}
		}
		if _, err = l.conn.Write(entry); err == nil {
			return nil
		}
		_ = l.conn.Close()
		l.conn = nil
	}
	return err
}

// field is a key of a line.
type field struct{ key, value string }

// Enabled implements slog.Handler.
func (h *Handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	fields := h.preset[:len(h.preset):len(h.preset)]
	r.Attrs(func(a slog.Attr) bool {
		fields = add(fields, h.group, a)
		return true
	})
	if h.link.send(entry(r, fields)) == nil {
		return nil
	}
	return h.fallback.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.fallback = h.fallback.WithAttrs(attrs)
	with.preset = h.preset[:len(h.preset):len(h.preset)]
	for _, a := range attrs {
		with.preset = add(with.preset, h.group, a)
	}
	return &with
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	with := *h
	with.fallback = h.fallback.WithGroup(name)
	if name != "" {
		with.group = h.group + name + "."
	}
	return &with
}

// add adds an attribute; the attributes of a group are added one by one.
func add(fields []field, group string, a slog.Attr) []field {
	v := a.Value.Resolve()
	switch {
	case v.Kind() == slog.KindGroup:
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, member := range v.Group() {
			fields = add(fields, group, member)
		}
		return fields
	case a.Key == "":
		return fields
	case v.Kind() == slog.KindTime:
		return append(fields, field{group + a.Key, v.Time().Format(time.RFC3339Nano)})
	}
	return append(fields, field{group + a.Key, v.String()})
}

// entry encodes a line.
func entry(r slog.Record, fields []field) []byte {
	message := r.Message
	for _, f := range fields {
		message += " " + f.key + "=" + quoted(f.value)
	}
	var b bytes.Buffer
	put(&b, "MESSAGE", message)
	put(&b, "PRIORITY", strconv.Itoa(priority(r.Level)))
	put(&b, "SYSLOG_IDENTIFIER", filepath.Base(os.Args[0]))
	for _, f := range fields {
		put(&b, name(f.key), f.value)
	}
	return b.Bytes()
}

// put writes a field: a line, or if the value has several of them, its size and its bytes.
func put(b *bytes.Buffer, name, value string) {
	b.WriteString(name)
	if strings.Contains(value, "\n") {
		b.WriteByte('\n')
		_ = binary.Write(b, binary.LittleEndian, uint64(len(value))) // a buffer takes everything
	} else {
		b.WriteByte('=')
	}
	b.WriteString(value)
	b.WriteByte('\n')
}

// longest is how long a name may be; the journal drops fields with a longer one.
const longest = 64

// name makes a field's name of a key: BERTH_ and the key in capitals.
func name(key string) string {
	text := "BERTH_" + strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z':
			return c - 'a' + 'A'
		case c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
			return c
		}
		return '_'
	}, key)
	return text[:min(len(text), longest)]
}

// quoted quotes a value that would not end where it seems to.
func quoted(value string) string {
	if value == "" || strings.ContainsFunc(value, func(c rune) bool {
		return c <= ' ' || c == '"' || c == '=' || c == 0x7f ||
			!strconv.IsPrint(c)
	}) {
		return strconv.Quote(value)
	}
	return value
}

// priority is a level as syslog(3) counts.
func priority(level slog.Level) int {
	const errors, warning, info, debug = 3, 4, 6, 7
	switch {
	case level >= slog.LevelError:
		return errors
	case level >= slog.LevelWarn:
		return warning
	case level >= slog.LevelInfo:
		return info
	}
	return debug
}
