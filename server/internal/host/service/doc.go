// Package service speaks with the service manager that has started this process: it tells systemd how the service is
// (sd_notify(3)), when to take it for hung (sd_watchdog_enabled(3)), and takes over the sockets that systemd holds for it
// (sd_listen_fds(3)).
//
// # Words
//
//   - activated socket: a listening socket that systemd made and keeps. It takes connections while no berthd runs.
//   - notification: lines such as READY=1 in one datagram to the socket that NOTIFY_SOCKET names.
//
// # Invariants
//
//   - Without a service manager everything succeeds and does nothing.
//   - A file of an activated socket is never removed: systemd would keep a socket that nobody can reach.
package service
