// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package group provides process groups: collectives, messages between ranks, and sub-groups.
//
//	g, err := group.New(ctx, store, rank, size)
//	defer g.Close()
//	err = group.AllReduceSlice(ctx, g, gradients, group.Sum)      // waits
//	work := g.AllReduce(ctx, t, group.Sum)                        // does not wait
//	err = work.Wait(ctx)
//
// The ranks are Go processes, PyTorch processes (torch.distributed with the gloo backend) or both. Before anything else,
// a Go rank publishes in the store what it can do, so the ranks know each other. If all are Go processes on one host,
// they share memory; if all are Go, they use a native TCP protocol; if any is a PyTorch rank, all speak gloo.
//
// # Operations
//
// Every operation returns a [Work] at once. The ctx of the call covers its submission, which waits if too many operations
// are already posted. If an operation depends on the version of the group's PyTorch ranks, the first one waits up to two seconds to find it
// out. For an invalid argument the returned Work has already failed, and no sequence number is used, so
// ranks stay in step. Collectives must be posted in the same order on all ranks. Tensors belong to the operation until it
// is complete; they may have any strides.
//
// All ranks in arguments and results are ranks within the group, where PyTorch's Python API takes global ranks;
// [Group.GlobalRank] and [Group.GroupRank] translate.
//
// # Failure
//
// When a rank dies, every operation that needs it fails at once with [cohort.PeerLost] and its rank. Among Go ranks,
// heartbeats ([WithHeartbeat]) find a process that is stopped or cut off, and ranks that call different operations,
// operators, types, sizes or roots all get [cohort.Mismatch] with both sides in its text. A failed collective leaves the
// ranks out of step, so the group fails too, and every later call returns the reason. Close the group and form a new one;
// the same processes can do that. With PyTorch ranks, an operation that their version cannot do is refused with
// [cohort.NotSupported] before anything is sent.
//
// # Correspondence
//
//	torch.distributed                  group
//	init_process_group                 New
//	new_group, new_subgroups           Group.NewGroup, NewSubgroups
//	device_mesh.init_device_mesh       Group.NewMesh
//	all_reduce(t, op=SUM)              Group.AllReduce(ctx, t, Sum)
//	broadcast, reduce                  Broadcast, Reduce
//	all_gather, all_gather_into_tensor AllGather, AllGatherInto
//	gather, scatter                    Gather, Scatter
//	reduce_scatter(_tensor)            ReduceScatter, ReduceScatterInto
//	all_to_all, all_to_all_single      AllToAll, AllToAllInto
//	barrier, monitored_barrier         Barrier, MonitoredBarrier
//	isend, irecv, batch_isend_irecv    Send, Recv, RecvAny, Batch
//	..._object(_list)                  ...Object(s), pickles as bytes
//	..._coalesced                      ...Coalesced
//	_coalescing_manager                Coalesce
//	destroy_process_group              Group.Close
package group
