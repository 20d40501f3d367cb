//go:build !linux

package service

// ReloadingNow is Reloading: systemd is on Linux only.
func ReloadingNow() []string { return []string{Reloading} }
