package berth

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	// DefaultEndpoint is where berthd listens unless configured.
	DefaultEndpoint = "unix:///run/berth/berth.sock"
	// EndpointVariable is the environment variable that replaces DefaultEndpoint.
	EndpointVariable = "BERTH_ENDPOINT"
)

// maxPath is how long a socket's path may be: sun_path of unix(7) has 108 bytes, one of which ends the string.
const maxPath = 107

// socketPath finds the socket that an endpoint means. The first text that is not empty counts.
func socketPath(texts ...string) (string, error) {
	endpoint := ""
	for _, text := range texts {
		if endpoint = text; endpoint != "" {
			break
		}
	}
	path := endpoint
	if scheme, rest, ok := strings.Cut(endpoint, ":"); ok && !strings.Contains(scheme, "/") {
		if scheme != "unix" {
			return "", fmt.Errorf("endpoint %q: expected a path or unix:///path, berthd listens on unix sockets only", endpoint)
		}
		path = strings.TrimPrefix(rest, "//")
	}
	if path == "" {
		return "", fmt.Errorf("endpoint %q: expected the path of berthd's socket", endpoint)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	if len(abs) > maxPath {
		return "", fmt.Errorf("endpoint %q: the path has %d bytes, and the kernel takes at most %d (unix(7), sun_path)", endpoint,
			len(abs), maxPath)
	}
	return abs, nil
}

// SocketPath finds the socket that an endpoint means, a path or unix:///path. Without an endpoint it is that of EndpointVariable, else
// DefaultEndpoint.
func SocketPath(given string) (string, error) {
	return socketPath(given, os.Getenv(EndpointVariable), DefaultEndpoint)
}
