// Package topology selects the NUMA nodes for a request. It merges the hints of all
// providers into one set of nodes, and admits or refuses the request by the policy. It has
// no state; a Manager is configuration.
//
// # Words
//
//   - list: a provider's answer for one resource, as the merge uses it.
//   - abstention: a preferred hint without nodes. A list with an abstention is compatible
//     with every preferred result.
//   - choice: one hint from every list. Its candidate is the intersection of the machine's
//     nodes and all chosen hints. The choice is preferred if all chosen hints are preferred
//     and name the same nodes.
//   - D: the nodes of the machine.
//   - B: for each list, take the smallest number of nodes that one of its hints names; B is
//     the largest of these numbers.
//   - stage: the result of the merge: a preferred candidate, another candidate, or no
//     candidate.
//   - scope: whether a pod is placed container by container or as a whole.
//
// # The result, without any order
//
// The kubelet's topology manager (KEP-693, here "the reference") enumerates all choices and
// keeps the better of two candidates at every step. Its comparison is a strict total order.
// So its result is a minimum, which can be computed without enumeration:
//
//	P = the non-empty candidates of preferred choices
//	A = the non-empty candidates of all choices
//	result = min P by (size, distance, value), preferred      if P is not empty
//	       = min A by (tier, distance, value), not preferred  if A is not empty
//	       = D, not preferred                                 otherwise
//
// The tier of a mask ranks the sizes B, B-1, … 1, B+1, B+2, …. The distance is the sum over
// all ordered pairs of the mask's nodes with the option prefer-closest-numa-nodes,
// otherwise 0 (KEP-3545). The value is the mask as an integer.
//
// P needs only the intersection of the preferred masks of all lists that do not abstain. A
// is computed list by list, as the set of reachable masks. If there are too many pairs of
// masks, sums over supersets (a zeta transform) replace the pairs; their cost depends only
// on the number of nodes. A result contains only nodes that every list mentions, so all
// masks are first restricted to these.
//
// A rule (hint.Rule) replaces a list that would be too long. numa.Search finds the masks
// that several rules prefer. If no mask is preferred, rules are expanded on the nodes that
// every list mentions.
//
// # Many nodes
//
// If a result that is not preferred may contain more than twelve nodes, A is not computed;
// see the type estimate. Machines whose accelerator memory forms NUMA nodes have more
// nodes. A request for CPUs can only be placed on nodes with CPUs, so its merge is exact
// there too.
//
// # Invariants
//
//   - The order of providers, of resources and of hints does not change a result.
//   - A result is exact unless it is marked Approximate. An approximate result is still a
//     candidate of some choice, and never wrongly marked preferred. Whether rules of
//     different weights leave a given set is the NP-complete problem PARTITION, so no fast
//     merge is exact in all cases.
//
// Other modules may import this package, and every release may change it.
package topology
