package config

import (
	"fmt"
	"net"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/socket"
)

// Sources name what a configuration is built from. Empty paths are skipped.
type Sources struct {
	KubeletFile, BerthFile string
	// KubeletDir is the directory of a kubelet's drop-ins.
	KubeletDir string
	// KubeletState is the directory with the state of this node's kubelet. With beside=kubelet,
	// notes list the kubelet's managers that are on.
	KubeletState string
	// Flags is applied last; it may be nil.
	Flags func(*config.Config) error
	// Try makes it the configuration of a berthd that leaves nothing behind; nil for any other.
	Try *Try
}

// Load builds and validates a configuration. Notes list settings of the sources that have no
// effect, also with an error. Errors are of class Invalid.
func Load(s Sources) (c config.Config, notes []string, err error) {
	c, notes, err = s.merge(false)
	if err == nil && c.Beside == config.Kubelet {
		c, notes, err = s.merge(true)
	}
	if err == nil && c.Observe.Root != "" {
		err = s.observer(&c)
	}
	slices.Sort(notes)
	if err != nil {
		return c, notes, err
	}
	if err := fillPaths(&c); err != nil {
		return c, notes, err
	}
	if err := numbers(c.Access); err != nil {
		return c, notes, err
	}
	if err := c.Validate(); err != nil {
		return c, notes, err
	}
	return c, notes, checkSockets(c)
}

// observer makes a configuration that of a berthd that observes.
func (s Sources) observer(c *config.Config) error {
	if s.KubeletFile != "" || s.KubeletDir != "" {
		return errdefs.Invalidf("--kubelet-config, --kubelet-config-dir: expected nothing: berthd finds the kubelet's configuration below observe.root (--observe)")
	}
	if err := c.CheckObserve(); err != nil {
		return err
	}
	c.Observed()
	return nil
}

// merge applies the sources in order. With beside=kubelet, other defaults override the kubelet's
// file, which configures the kubelet's own managers. Berthd's own sources override those
// defaults.
func (s Sources) merge(besideKubelet bool) (c config.Config, notes []string, err error) {
	c = config.Default()
	s.Try.defaults(&c)
	if s.KubeletFile != "" || s.KubeletDir != "" {
		if notes, err = s.mergeKubelet(&c); err != nil {
			return c, notes, err
		}
	}
	if besideKubelet {
		on, err := c.BesideKubelet()
		if err != nil {
			return c, notes, err
		}
		state, err := kubeletState(s.KubeletState)
		if err != nil {
			return c, notes, err
		}
		notes = slices.Concat(notes, on, state)
	}
	if s.BerthFile != "" {
		data, err := readFile("configuration", s.BerthFile)
		if err != nil {
			return c, notes, err
		}
		if err := c.ApplyBerth(s.BerthFile, data); err != nil {
			return c, notes, err
		}
	}
	ignored, err := s.Try.contain(&c)
	if err != nil {
		return c, notes, err
	}
	if s.Flags != nil {
		if err := s.Flags(&c); err != nil {
			return c, notes, err
		}
	}
	s.Try.apply(&c)
	return c, slices.Concat(notes, ignored), nil
}

// mergeKubelet applies the kubelet's file, and its drop-ins.
func (s Sources) mergeKubelet(c *config.Config) (notes []string, err error) {
	var main, dropIns []config.File
	if s.KubeletFile != "" {
		data, err := readFile("kubelet's configuration", s.KubeletFile)
		if err != nil {
			return nil, err
		}
		main = append(main, config.File{Path: s.KubeletFile, Data: data})
	}
	if s.KubeletDir != "" {
		if dropIns, err = config.ReadDropIns(s.KubeletDir); err != nil {
			return nil, err
		}
	}
	return c.ApplyKubelets(main, dropIns)
}

// numbers puts the numbers of users and groups in place of their names.
func numbers(grants []access.Grant) error {
	for i := range grants {
		g := &grants[i]
		var text string
		switch {
		case g.UID != nil || g.GID != nil:
			continue // also if there is a name too: that is found wrong as a whole
		case g.User != "":
			u, err := user.Lookup(g.User)
			if err != nil {
				return errdefs.Invalidf("access[%d].user: there is no user %q on this machine: %w", i, g.User, err)
			}
			text = u.Uid
		case g.Group != "":
			group, err := user.LookupGroup(g.Group)
			if err != nil {
				return errdefs.Invalidf("access[%d].group: there is no group %q on this machine (systemd-sysusers makes the group berth): %w", i, g.Group, err)
			}
			text = group.Gid
		default:
			continue
		}
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return errdefs.Invalidf("access[%d]: %s is no number of a user or group", i, text)
		}
		number := uint32(n)
		if g.User != "" && g.Group == "" {
			g.UID, g.User = &number, ""
		} else if g.User == "" {
			g.GID, g.Group = &number, ""
		}
	}
	return nil
}

// maxConfiguration bounds a configuration's file.
const maxConfiguration = 16 << 20

// readFile reads a configuration file, which only root and berthd's user may change; what names it in
// errors. It is called again for each reload.
func readFile(what, path string) ([]byte, error) {
	data, err := trust.ReadFile(path, maxConfiguration)
	if errdefs.ClassOf(err) == errdefs.Precondition {
		return nil, fmt.Errorf("read the %s: %w", what, err)
	}
	if err != nil {
		return nil, errdefs.Invalidf("read the %s: %w", what, err)
	}
	return data, nil
}

// fillPaths gives every path that was not set its place.
func fillPaths(c *config.Config) error {
	run, state, kubelet := "/run/berth", "/var/lib/berth", "/var/lib/kubelet"
	if c.RootDir != "" {
		root, err := filepath.Abs(c.RootDir)
		if err != nil {
			return fmt.Errorf("find the directory %s: %w", c.RootDir, err)
		}
		c.RootDir = root
		run, state, kubelet = root, filepath.Join(root, "state"), root
	}
	if c.Observe.Root != "" {
		state = ""
	}
	readers := kubelet
	if c.Beside == config.Kubelet {
		readers = run // a kubelet serves its own socket
	}
	for _, p := range []struct {
		field    *string
		fallback string
	}{
		{&c.Listen, filepath.Join(run, "berth.sock")},
		{&c.StateDir, state}, // empty where berthd observes
		{directory(&c.DevicePluginDir, filepath.Join(kubelet, "device-plugins")), ""},
		{directory(&c.PluginRegistryDir, filepath.Join(kubelet, "plugins_registry")), ""},
		{directory(&c.PodResourcesDir, filepath.Join(readers, "pod-resources")), ""},
	} {
		if *p.field == "" {
			*p.field = p.fallback
		}
		if *p.field == "" {
			continue // switched off
		}
		abs, err := filepath.Abs(*p.field)
		if err != nil {
			return fmt.Errorf("find the path %s: %w", *p.field, err)
		}
		*p.field = abs
	}
	return nil
}

// directory gives a directory that was not set its place. The path is a copy: no source's is changed.
func directory(field **string, fallback string) *string {
	if *field != nil {
		fallback = **field
	}
	*field = &fallback
	return *field
}

// checkSockets refuses paths and addresses that no socket of berthd can have.
func checkSockets(c config.Config) error {
	var vs errdefs.Violations
	for _, s := range []struct{ field, path string }{
		{"listen", c.Listen},
		{"devicePluginDir", c.DevicePluginSocket()},
		{"podResourcesDir", c.PodResourcesSocket()},
	} {
		if s.path == "" {
			continue // switched off
		}
		if err := socket.CheckPath(s.path); err != nil {
			vs.Addf(s.field, "%v", err)
		}
	}
	if path, ok := c.HTTPSocket(); ok {
		if err := socket.CheckPath(path); err != nil {
			vs.Addf("http", "%v", err)
		}
	} else if c.HTTP != "" {
		_, port, err := net.SplitHostPort(c.HTTP)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil {
			vs.Addf("http", "expected HOST:PORT, such as localhost:10470, or unix:///run/berth/http.sock: %v", err)
		}
	}
	if c.ListenGroup != "" {
		if _, err := socket.Group(c.ListenGroup); err != nil {
			vs.Addf("listenGroup", "%v", err)
		}
	}
	return vs.Err("configuration")
}
