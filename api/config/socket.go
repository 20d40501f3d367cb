package config

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// Mode parses the mode of a socket; empty means otherwise.
func Mode(text string, otherwise fs.FileMode) (fs.FileMode, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("%q: expected permissions in octal digits, such as \"0660\"", text)
	}
	return fs.FileMode(n), nil
}

// SocketMode is the mode of berth's own socket. Only root and the socket's group can connect,
// unless the configuration grants roles.
func (c Config) SocketMode() fs.FileMode {
	otherwise := fs.FileMode(0o660)
	if len(c.Access) > 0 {
		otherwise = 0o666
	}
	mode, _ := Mode(c.ListenMode, otherwise) // validated
	return mode
}

// HTTPSocket is the path of the socket for metrics and health; false if they have an address, or none.
func (c Config) HTTPSocket() (path string, ok bool) { return strings.CutPrefix(c.HTTP, "unix://") }
