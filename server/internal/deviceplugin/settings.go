package deviceplugin

import (
	"fmt"
	"path"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// inexpressible returns why a container cannot be created with a plugin's settings; empty if it can. What the OCI
// specification cannot express goes through to the runtime otherwise, which fails at every start.
func inexpressible(r *pluginapi.ContainerAllocateResponse) string {
	for name, value := range r.GetEnvs() {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return fmt.Sprintf("environment variable %.80q: expected a name without =, and no zero bytes", name)
		}
	}
	for i, m := range r.GetMounts() {
		if !absolute(m.GetHostPath()) || !absolute(m.GetContainerPath()) {
			return fmt.Sprintf("mounts[%d]: %.80q on %.80q: expected absolute paths without zero bytes", i, m.GetHostPath(),
				m.GetContainerPath())
		}
	}
	for i, d := range r.GetDevices() {
		if !absolute(d.GetHostPath()) || !absolute(d.GetContainerPath()) {
			return fmt.Sprintf("devices[%d]: %.80q as %.80q: expected absolute paths without zero bytes", i, d.GetHostPath(),
				d.GetContainerPath())
		}
		if p := d.GetPermissions(); p == "" || strings.Trim(p, "rwm") != "" {
			return fmt.Sprintf("devices[%d]: permissions %.80q: expected some of r, w and m", i, p)
		}
	}
	for name := range r.GetAnnotations() {
		if name == "" || strings.ContainsRune(name, 0) {
			return fmt.Sprintf("annotation %.80q: expected a name without zero bytes", name)
		}
	}
	for i, d := range r.GetCdiDevices() {
		if !cdiName(d.GetName()) {
			return fmt.Sprintf("cdi_devices[%d]: %.80q: expected a name such as vendor.com/class=device", i, d.GetName())
		}
	}
	return ""
}

func absolute(name string) bool { return path.IsAbs(name) && !strings.ContainsRune(name, 0) }

// cdiName returns whether a text is a qualified name of a CDI device: vendor/class=device, of letters, digits and a
// few marks between them.
func cdiName(text string) bool {
	kind, device, ok := strings.Cut(text, "=")
	vendor, class, both := strings.Cut(kind, "/")
	return ok && both && marked(vendor, "_-.", true) && marked(class, "_-", true) && marked(device, "_-.:", false)
}

// marked returns whether a text has only letters, digits, and marks that are not at an end of it.
func marked(text, marks string, letterFirst bool) bool {
	for i, c := range text {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		digit := '0' <= c && c <= '9'
		switch {
		case letter:
		case digit && (i > 0 || !letterFirst):
		case strings.ContainsRune(marks, c) && i > 0 && i < len(text)-1:
		default:
			return false
		}
	}
	return text != ""
}
