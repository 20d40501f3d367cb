// Package monitoring tests what deploy/monitoring has: the rules, the alerts' page and the dashboard
// name only metrics that berthd has, and a real Prometheus evaluates all of it on a real berthd.
// test.sh beside this file builds Prometheus for that.
package monitoring
