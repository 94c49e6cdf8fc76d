// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package group is the process group: collectives, messages between ranks, sub-groups.
//
//	g, err := group.New(ctx, store, rank, size)
//	defer g.Close()
//	err = group.AllReduceSlice(ctx, g, gradients, group.Sum)      // waits
//	work := g.AllReduce(ctx, t, group.Sum)                        // does not wait
//	err = work.Wait(ctx)
//
// The ranks are Go processes, PyTorch processes (torch.distributed with the gloo backend) or both. A Go rank says what it
// can do in the store before anything else, so the ranks know each other: where all are Go processes of one host they
// share memory, where all are Go they use a native TCP wire, and where a PyTorch rank takes part everybody speaks gloo.
//
// # Operations
//
// Every operation returns a [Work] at once. The ctx of the call covers its submission: at the bound of posted operations it
// waits for a place. A mistake in the arguments comes back as a Work that has failed already and takes no sequence number,
// so ranks stay in step. Collectives must be posted in the same order on all ranks. Tensors belong to the operation until
// it is complete; they may have any strides.
//
// Ranks are ranks of the group; [Group.GlobalRank] and [Group.GroupRank] translate. PyTorch's Python API takes global ranks
// there.
//
// # Failure
//
// The death of a rank ends every operation that needs it, at once, with [dist.PeerLost] and its rank. Among Go ranks a
// process that is stopped or cut off is found by heartbeats ([WithHeartbeat]), and ranks that call different operations,
// operators, types, sizes or roots all get [dist.Mismatch] with both sides in its text. A collective that has failed leaves
// the ranks out of step, so the group fails with it and says so at every later call; close it and make a new one, which
// needs no new process. With PyTorch ranks, what their version cannot do is refused with [dist.NotSupported] before
// anything is sent.
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
