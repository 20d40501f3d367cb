// Package service communicates with the service manager that has started this process. It sends
// the service's state to systemd (sd_notify(3)), and keeps systemd's watchdog from expiring
// (sd_watchdog_enabled(3)). It takes over sockets that systemd holds for the service
// (sd_listen_fds(3)).
//
// # Words
//
//   - activated socket: a listening socket that systemd created and keeps. It queues connections while no berthd runs.
//   - notification: lines such as READY=1 in one datagram to the socket that NOTIFY_SOCKET names.
//
// # Invariants
//
//   - Without a service manager every call succeeds and does nothing.
//   - The file of an activated socket is never removed: systemd would keep an unreachable socket.
package service
