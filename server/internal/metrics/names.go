package metrics

// Names of the kubelet's metrics. Some have no prefix there either.
const (
	cpuSharedPool      = "kubelet_cpu_manager_shared_pool_size_millicores"
	cpuExclusive       = "kubelet_cpu_manager_exclusive_cpu_allocation_count"
	cpuPerNUMA         = "kubelet_cpu_manager_allocation_per_numa"
	cpuPinningRequests = "kubelet_cpu_manager_pinning_requests_total"
	cpuPinningErrors   = "kubelet_cpu_manager_pinning_errors_total"

	memoryPinningRequests = "kubelet_memory_manager_pinning_requests_total"
	memoryPinningErrors   = "kubelet_memory_manager_pinning_errors_total"

	alignedCount    = "kubelet_container_aligned_compute_resources_count"
	alignedFailures = "kubelet_container_aligned_compute_resources_failure_count"

	topologyRequests = "kubelet_topology_manager_admission_requests_total"
	topologyErrors   = "kubelet_topology_manager_admission_errors_total"
	topologyDuration = "kubelet_topology_manager_admission_duration_ms"

	rejections = "kubelet_admission_rejections_total"

	managerAllocations = "resource_manager_allocations_total"
	managerErrors      = "resource_manager_allocation_errors_total"
	managerAssignments = "resource_manager_container_assignments_total"

	pluginRegistrations = "kubelet_device_plugin_registration_total"
	pluginAllocDuration = "kubelet_device_plugin_alloc_duration_seconds"
	pluginsFound        = "plugin_manager_total_plugins"

	cgroupDuration = "kubelet_cgroup_manager_duration_seconds"
	cgroupVersion  = "kubelet_cgroup_version"
	losingSupport  = "kubelet_cri_losing_support"

	memoryQoSMin = "kubelet_memory_qos_node_memory_min_bytes"
	memoryQoSLow = "kubelet_memory_qos_node_memory_low_bytes"

	resizeDuration    = "kubelet_pod_resize_duration_milliseconds"
	infeasibleResizes = "kubelet_pod_infeasible_resizes_total"
)

// Names of the kubelet's resource metrics (/metrics/resource), and of cAdvisor's.
const (
	containerCPU        = "container_cpu_usage_seconds_total"
	containerMemory     = "container_memory_usage_bytes"
	containerWorkingSet = "container_memory_working_set_bytes"
	nodeAllocatable     = "kubelet_node_allocatable"
)

// Names of berth's own metrics.
const (
	usageOmitted      = "berth_container_usage_omitted"
	stepDuration      = "berth_admission_step_duration_seconds"
	callDuration      = "berth_rpc_duration_seconds"
	passDuration      = "berth_reconcile_duration_seconds"
	passOperations    = "berth_reconcile_operations_total"
	admissionDuration = "berth_admission_duration_seconds"
	ownRejections     = "berth_admission_rejections_total"
	moveSteps         = "berth_move_steps_total"
	replacements      = "berth_replacements_total"
	ledgerRevision    = "berth_ledger_revision"
	ledgerPods        = "berth_ledger_pods"
	ledgerClaims      = "berth_ledger_claims"
	resourceClaims    = "berth_resource_claims"
	claimCPUs         = "berth_resource_claim_cpus"
	claimMemory       = "berth_resource_claim_memory_bytes"
	ledgerFindings    = "berth_ledger_findings"
	containerPhases   = "berth_containers"
	cgroupDrifts      = "berth_cgroup_drifts_total"
	cgroupOrphans     = "berth_cgroup_orphans"
	buildInfo         = "berth_build_info"
	watchStreams      = "berth_watch_streams"
	ledgerBytes       = "berth_ledger_size_bytes"
	historyEntries    = "berth_history_entries"
	historyBytes      = "berth_history_size_bytes"
	historyOldest     = "berth_history_oldest_timestamp_seconds"
	historyOmitted    = "berth_history_omitted_total"
	devicePlugins     = "berth_device_plugins"
	machineChanges    = "berth_machine_changes_total"
	machineCPUs       = "berth_machine_cpus"
)

// ownNames are names of berth's own for metrics that have a kubelet's name. They are served in every installation, also beside a kubelet,
// where its names are left out: rules and dashboards use them.
var ownNames = map[string]string{
	cpuExclusive:        "berth_exclusive_cpus",
	cpuPerNUMA:          "berth_exclusive_cpus_per_numa",
	cpuSharedPool:       "berth_shared_pool_size_millicores",
	nodeAllocatable:     "berth_node_allocatable",
	pluginsFound:        "berth_plugin_sockets",
	pluginRegistrations: "berth_device_plugin_registrations_total",
	pluginAllocDuration: "berth_device_plugin_alloc_duration_seconds",
	containerCPU:        "berth_container_cpu_usage_seconds_total",
	containerWorkingSet: "berth_container_memory_working_set_bytes",
}

// Labels, and the values that the kubelet gives them.
const (
	labelNode           = "numa_node"
	labelScope          = "scope"
	labelBoundary       = "boundary"
	labelReason         = "reason"
	labelResource       = "resource_name"
	labelSource         = "source"
	labelAssignmentType = "assignment_type"
	labelSocket         = "socket_path"
	labelState          = "state"
	labelOperation      = "operation_type"
	labelFile           = "file"
	labelSuccess        = "success"
	labelReasonDetail   = "reason_detail"
	labelVersion        = "version"

	// firstWithout is the first Kubernetes version whose kubelet does not start with a runtime
	// that does not report its cgroup driver, according to the kubelet of 1.36.
	firstWithout = "1.37.0"

	boundaryCore   = "physical_cpu"
	boundaryUncore = "uncore_cache"
	boundaryNode   = "numa_node"

	sourceNode = "node"
	sourcePod  = "pod"

	reasonOther = "Other"

	stateDesired = "desired_state_of_world"
	stateActual  = "actual_state_of_world"
)
