// Package thirdparty runs device plugins and readers of others, unmodified,
// against berthd: through its start, admissions, its restart and theirs.
//
// Several of them have their paths hard-coded, so the tests run in a mount
// namespace of their own, with an empty /var/lib; that needs root.
//
//   - sample-device-plugin, of Kubernetes' own tests: registers, watches for
//     kubelet.sock.
//   - the kubelet's device plugin stub and its client of podresources, as
//     libraries: registers or is found, wants to be asked for its preference and
//     before each start.
//   - k8s-rdma-shared-dev-plugin (in a module of its own: its dependencies do not
//     go together with those of Kubernetes): is found, or registers where there is
//     no registry. Without its hardware it has no devices.
package thirdparty
