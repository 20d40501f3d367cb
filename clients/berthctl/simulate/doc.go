// Package simulate has the commands of berthctl that compute decisions without berthd: simulate, fit, replay,
// compare and bundle.
//
// Words: a scene is the machine, the configuration and the devices for which decisions are computed.
//
// Invariants: berthd is read at most; nothing is changed.
package simulate
