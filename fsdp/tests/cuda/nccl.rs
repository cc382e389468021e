//! NCCL with one rank in one process. (`nccl_moves` has two.)

use highwater_fsdp::group::{NcclGroup, Place, ProcessGroup, nccl_version};
use highwater_kernels::host::Update;

use crate::support::{Rank, TIMEOUT, bits, values};

#[test]
#[ignore = "needs a GPU"]
fn one_rank_alone_keeps_its_bits() {
    assert!(nccl_version().unwrap() >= (2, 18, 0));
    let place = Place { rank: 0, world_size: 1, local_rank: 0, master_addr: "localhost".into(), master_port: 29500 };
    let host = Rank::new();
    let group = NcclGroup::join(&host.device, &place, TIMEOUT).unwrap();
    assert_eq!((group.rank(), group.ranks()), (0, 1));
    for own in [0, 1, 1000] {
        let expected = values(own, 3);
        let (shard, all) = (host.upload(&expected), host.upload(&vec![f32::NAN; own]));
        group.all_gather(&host.stream, shard.view(), all.view()).unwrap();
        assert_eq!(bits(&host.download(&all)), bits(&expected));
        let sum = host.upload(&vec![f32::NAN; own]);
        group.reduce_scatter(&host.stream, all.view(), sum.view(), Update::Store).unwrap();
        assert_eq!(bits(&host.download(&sum)), bits(&expected));
        group.reduce_scatter(&host.stream, all.view(), sum.view(), Update::Accumulate).unwrap();
        let twice: Vec<f32> = expected.iter().map(|value| value + value).collect();
        assert_eq!(bits(&host.download(&sum)), bits(&twice));
    }
}
